//! The way to a server, on which what belongs together is sent together. The head of a request and its message are handed to the
//! connection by two tasks, one a moment behind the other. Left to itself it sends each in a packet of its own, and the server wakes
//! up twice.
//!
//! The server also measures the connection: with each request that comes while no measurement runs, it sends a ping of a known
//! content, for which the client would wake up, answer in a packet of its own, and wake the server. Such an answer is kept until it
//! is a second old, and then travels with whatever is sent next; until then the server asks no more. Any other ping is answered at once.

use futures_core::future::BoxFuture;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;

/// As much is kept back; what is larger gains nothing by it.
const MOST: usize = 16 << 10;

/// The answer to a ping of Go's gRPC by which it measures, not one that asks whether we live: a frame of HTTP/2.
const MEASURED: &[u8] = &[0, 0, 8, 6, 1, 0, 0, 0, 0, 2, 4, 16, 16, 9, 14, 7, 7];
/// So long it is kept.
const NOT_BEFORE: Duration = Duration::from_secs(1);

/// Makes connections.
#[derive(Clone)]
pub(super) struct Connector(HttpConnector);

impl Connector {
    pub(super) fn new(within: Duration) -> Connector {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(within));
        Connector(http)
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Together<TcpStream>>;
    type Error = <HttpConnector as Service<Uri>>::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, server: Uri) -> Self::Future {
        let connecting = self.0.call(server);
        Box::pin(async move { Ok(TokioIo::new(Together::new(connecting.await?.into_inner()))) })
    }
}

/// A stream that lets the other tasks have one turn before it sends what it was given.
pub(super) struct Together<S> {
    stream: S,
    /// What was not sent yet, from there on.
    kept: Vec<u8>,
    sent: usize,
    /// Whether the others have had their turn.
    waited: bool,
    /// Everything before this was sent, to the end of a frame.
    between: bool,
    /// Since when an answer to a measurement is kept.
    measured: Option<Instant>,
}

impl<S: AsyncWrite + Unpin> Together<S> {
    fn new(stream: S) -> Together<S> {
        Together { stream, kept: Vec::new(), sent: 0, waited: false, between: false, measured: None }
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.kept.len() {
            match ready!(Pin::new(&mut self.stream).poll_write(cx, &self.kept[self.sent..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                sent => self.sent += sent,
            }
        }
        self.kept.clear();
        (self.sent, self.waited) = (0, false);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Together<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, some: &[u8]) -> Poll<io::Result<usize>> {
        if self.between && self.kept.is_empty() && some == MEASURED {
            self.measured = Some(self.measured.unwrap_or_else(Instant::now));
            return Poll::Ready(Ok(some.len()));
        }
        if self.kept.len() >= MOST {
            ready!(self.poll_send(cx))?;
        }
        self.between = false;
        self.kept.extend_from_slice(some);
        Poll::Ready(Ok(some.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.kept.is_empty() && !self.waited {
            self.waited = true;
            // Whoever wakes itself is behind all that are ready now.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        // Whoever asks for this has given all of its last frame.
        if !self.kept.is_empty() && self.measured.is_some_and(|since| since.elapsed() >= NOT_BEFORE) {
            self.measured = None;
            self.kept.extend_from_slice(MEASURED);
        }
        ready!(self.poll_send(cx))?;
        self.between = true;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send(cx))?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Together<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;
    use tokio::io::AsyncWriteExt;

    /// Remembers each packet; takes at most so much at once.
    #[derive(Default)]
    struct Packets {
        sent: Vec<Vec<u8>>,
        at_once: usize,
    }

    impl AsyncWrite for Packets {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, some: &[u8]) -> Poll<io::Result<usize>> {
            let taken = some.len().min(self.at_once);
            self.sent.push(some[..taken].into());
            Poll::Ready(Ok(taken))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[test]
    fn what_comes_in_the_same_turn_is_one_packet() {
        let mut together = Together::new(Packets { at_once: usize::MAX, ..Packets::default() });
        let cx = &mut Context::from_waker(Waker::noop());
        for (some, flushed) in [("head", false), (" and message", true), ("next", false), ("", true)] {
            assert!(Pin::new(&mut together).poll_write(cx, some.as_bytes()).is_ready());
            assert_eq!(Pin::new(&mut together).poll_flush(cx).is_ready(), flushed, "{some}");
        }
        assert_eq!(together.stream.sent, [b"head and message".to_vec(), b"next".to_vec()]);
    }

    #[test]
    fn an_answer_to_a_measurement_waits_for_a_second_and_for_company() {
        let mut together = Together::new(Packets { at_once: usize::MAX, ..Packets::default() });
        let cx = &mut Context::from_waker(Waker::noop());
        let mut say = |together: &mut Together<Packets>, some: &[u8]| {
            assert!(Pin::new(&mut *together).poll_write(cx, some).is_ready());
            while Pin::new(&mut *together).poll_flush(cx).is_pending() {}
            std::mem::take(&mut together.stream.sent).concat()
        };
        assert_eq!(say(&mut together, b"request"), b"request");
        assert_eq!(say(&mut together, MEASURED), b"", "nobody is woken for it");
        let mut asked = MEASURED.to_vec();
        *asked.last_mut().unwrap() = 8;
        assert_eq!(say(&mut together, &asked), asked, "whether we live is answered at once");
        assert_eq!(say(&mut together, b"request"), b"request");
        together.measured = Instant::now().checked_sub(NOT_BEFORE);
        assert_eq!(say(&mut together, b""), b"", "and it never travels alone");
        assert_eq!(say(&mut together, b"request"), [&b"request"[..], MEASURED].concat());
        assert_eq!(say(&mut together, b"request"), b"request", "once is enough");
        // The same bytes in the middle of something else are no answer.
        assert!(Pin::new(&mut together).poll_write(cx, b"a frame, the rest of which is ").is_ready());
        assert!(Pin::new(&mut together).poll_write(cx, MEASURED).is_ready());
        while Pin::new(&mut together).poll_flush(cx).is_pending() {}
        assert_eq!(together.stream.sent.concat(), [&b"a frame, the rest of which is "[..], MEASURED].concat());
    }

    #[tokio::test]
    async fn nothing_is_lost_however_little_is_taken() {
        for at_once in [1, 7, MOST] {
            let mut together = Together::new(Packets { at_once, ..Packets::default() });
            let all: Vec<u8> = (0..MOST * 2 + 100).map(|i| i as u8).collect();
            for some in all.chunks(1000) {
                together.write_all(some).await.unwrap();
            }
            assert!(together.kept.len() < MOST + 1000, "it keeps everything back");
            together.shutdown().await.unwrap();
            assert_eq!(together.stream.sent.concat(), all);
        }
        let mut together = Together::new(Packets { at_once: 0, ..Packets::default() });
        together.write_all(b"x").await.unwrap();
        assert_eq!(together.flush().await.unwrap_err().kind(), io::ErrorKind::WriteZero);
    }
}

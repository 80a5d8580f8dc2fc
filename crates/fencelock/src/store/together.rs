//! A stream that sends together what comes about together. Left to itself a connection sends each request in a packet of its own, as soon
//! as it is there, and the server wakes up for each.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream that lets the other tasks have one turn before it sends what it was given.
pub(crate) struct Together<S> {
    stream: S,
    /// What was not sent yet, from there on.
    kept: Vec<u8>,
    sent: usize,
    /// Whether the others have had their turn.
    waited: bool,
    /// As much is kept back; what is larger gains nothing by it.
    most: usize,
}

impl<S: AsyncWrite + Unpin> Together<S> {
    pub(crate) fn new(stream: S, most: usize) -> Together<S> {
        Together { stream, kept: Vec::new(), sent: 0, waited: false, most }
    }

    #[cfg(feature = "redis")]
    pub(crate) fn stream(&self) -> &S {
        &self.stream
    }

    #[cfg(all(test, feature = "etcd"))]
    pub(crate) fn stream_mut(&mut self) -> &mut S {
        &mut self.stream
    }

    /// Whether there is nothing to be sent.
    pub(crate) fn is_empty(&self) -> bool {
        self.kept.is_empty()
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
        if self.kept.len() >= self.most {
            ready!(self.poll_send(cx))?;
        }
        self.kept.extend_from_slice(some);
        Poll::Ready(Ok(some.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.kept.is_empty() && self.kept.len() < self.most && !self.waited {
            self.waited = true;
            // Whoever wakes itself is behind all that are ready now.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        ready!(self.poll_send(cx))?;
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
pub(crate) mod tests {
    use super::*;

    const MOST: usize = 16 << 10;

    use std::task::Waker;
    use tokio::io::AsyncWriteExt;

    /// Remembers each packet; takes at most so much at once.
    #[derive(Default)]
    pub(crate) struct Packets {
        pub(crate) sent: Vec<Vec<u8>>,
        pub(crate) at_once: usize,
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
        let mut together = Together::new(Packets { at_once: usize::MAX, ..Packets::default() }, MOST);
        let cx = &mut Context::from_waker(Waker::noop());
        for (some, flushed) in [("head", false), (" and message", true), ("next", false), ("", true)] {
            assert!(Pin::new(&mut together).poll_write(cx, some.as_bytes()).is_ready());
            assert_eq!(Pin::new(&mut together).poll_flush(cx).is_ready(), flushed, "{some}");
        }
        assert_eq!(together.stream.sent, [b"head and message".to_vec(), b"next".to_vec()]);
    }

    #[test]
    fn as_much_as_is_kept_back_is_sent_at_once() {
        let mut together = Together::new(Packets { at_once: usize::MAX, ..Packets::default() }, 10);
        let cx = &mut Context::from_waker(Waker::noop());
        for (some, flushed) in [("a few", false), (" more", true), ("a lot of them", true), ("one", false)] {
            assert!(Pin::new(&mut together).poll_write(cx, some.as_bytes()).is_ready());
            assert_eq!(Pin::new(&mut together).poll_flush(cx).is_ready(), flushed, "{some}");
        }
        assert_eq!(together.stream.sent, [b"a few more".to_vec(), b"a lot of them".to_vec()]);
    }

    #[tokio::test]
    async fn nothing_is_lost_however_little_is_taken() {
        for at_once in [1, 7, MOST] {
            let mut together = Together::new(Packets { at_once, ..Packets::default() }, MOST);
            let all: Vec<u8> = (0..MOST * 2 + 100).map(|i| i as u8).collect();
            for some in all.chunks(1000) {
                together.write_all(some).await.unwrap();
            }
            assert!(together.kept.len() < MOST + 1000, "it keeps everything back");
            together.shutdown().await.unwrap();
            assert_eq!(together.stream.sent.concat(), all);
        }
        let mut together = Together::new(Packets { at_once: 0, ..Packets::default() }, MOST);
        together.write_all(b"x").await.unwrap();
        assert_eq!(together.flush().await.unwrap_err().kind(), io::ErrorKind::WriteZero);
    }
}

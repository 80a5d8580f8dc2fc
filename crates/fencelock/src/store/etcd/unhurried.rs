//! A stream on which the server's measurements are answered late. With each request that comes while no measurement runs, the server sends a
//! ping of a known content, for which the client would wake up, answer in a packet of its own, and wake the server. Such an answer is
//! kept until it is a second old, and then travels with whatever is sent next; until then the server asks no more. Any other ping is
//! answered at once.

use crate::store::together::Together;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The answer to a ping of Go's gRPC by which it measures, not one that asks whether we live: a frame of HTTP/2.
const MEASURED: &[u8] = &[0, 0, 8, 6, 1, 0, 0, 0, 0, 2, 4, 16, 16, 9, 14, 7, 7];
/// So long it is kept.
const NOT_BEFORE: Duration = Duration::from_secs(1);

pub(super) struct Unhurried<S> {
    stream: Together<S>,
    /// Everything before this was sent, to the end of a frame.
    between: bool,
    /// Since when an answer to a measurement is kept.
    measured: Option<Instant>,
}

impl<S: AsyncWrite + Unpin> Unhurried<S> {
    pub(super) fn new(stream: Together<S>) -> Unhurried<S> {
        Unhurried { stream, between: false, measured: None }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Unhurried<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, some: &[u8]) -> Poll<io::Result<usize>> {
        if self.between && some == MEASURED {
            self.measured = Some(self.measured.unwrap_or_else(Instant::now));
            return Poll::Ready(Ok(some.len()));
        }
        self.between = false;
        Pin::new(&mut self.stream).poll_write(cx, some)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Whoever asks for this has given all of its last frame.
        if !self.stream.is_empty() && self.measured.is_some_and(|since| since.elapsed() >= NOT_BEFORE) {
            ready!(Pin::new(&mut self.stream).poll_write(cx, MEASURED))?;
            self.measured = None;
        }
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        self.between = true;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Unhurried<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::together::tests::Packets;
    use std::task::Waker;

    #[test]
    fn an_answer_to_a_measurement_waits_for_a_second_and_for_company() {
        let packets = Packets { at_once: usize::MAX, ..Packets::default() };
        let mut stream = Unhurried::new(Together::new(packets, 1 << 14));
        let cx = &mut Context::from_waker(Waker::noop());
        let mut say = |stream: &mut Unhurried<Packets>, all: &[&[u8]]| {
            for some in all {
                assert!(Pin::new(&mut *stream).poll_write(cx, some).is_ready());
            }
            while Pin::new(&mut *stream).poll_flush(cx).is_pending() {}
            std::mem::take(&mut stream.stream.stream_mut().sent).concat()
        };
        assert_eq!(say(&mut stream, &[b"request"]), b"request");
        assert_eq!(say(&mut stream, &[MEASURED]), b"", "nobody is woken for it");
        let mut asked = MEASURED.to_vec();
        *asked.last_mut().unwrap() = 8;
        assert_eq!(say(&mut stream, &[&asked]), asked, "whether we live is answered at once");
        assert_eq!(say(&mut stream, &[b"request"]), b"request");
        stream.measured = Instant::now().checked_sub(NOT_BEFORE);
        assert_eq!(say(&mut stream, &[b""]), b"", "and it never travels alone");
        assert_eq!(say(&mut stream, &[b"request"]), [&b"request"[..], MEASURED].concat());
        assert_eq!(say(&mut stream, &[b"request"]), b"request", "once is enough");
        // The same bytes in the middle of something else are no answer.
        let middle: &[&[u8]] = &[b"a frame, the rest of which is ", MEASURED];
        assert_eq!(say(&mut stream, middle), middle.concat());
    }
}

//! A connection that stays awake for a moment. Whoever has asked something, and has nothing else to do, is put to sleep and woken by the
//! answer; where the server is on the same machine that takes longer than the answer, on either side. So it looks for the
//! answer again and again instead, for a while, as long as there is only this one call under way. The other tasks of the runtime
//! have their turns in between; and where that was in vain, it is not done for the next calls.

use crate::store::together::Together;
use redis::io::tcp::socket2::SockRef;
use std::io::{self, Read};
#[cfg(unix)]
pub(super) use std::os::fd::AsFd as AsSocket;
#[cfg(windows)]
pub(super) use std::os::windows::io::AsSocket;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// So long where nothing else is said, on the server's own machine.
pub(super) const NEARBY: Duration = Duration::from_micros(200);
/// After so many times in vain it is done for every 256th call, and no more seldom.
const MOST_IN_VAIN: u32 = 8;

/// Whether a connection stays awake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spin {
    Never,
    /// On the server's own machine.
    Nearby,
    For(Duration),
}

impl Spin {
    /// For how long, given whether the server is on this machine.
    pub(super) fn here(self, here: bool) -> Option<Duration> {
        match self {
            Spin::Never => None,
            Spin::Nearby => here.then_some(NEARBY),
            Spin::For(spin) => Some(spin),
        }
    }
}

/// How many calls are under way on a connection.
#[derive(Clone, Default)]
pub(super) struct UnderWay(Arc<AtomicUsize>);

/// One of them.
pub(super) struct One<'a>(&'a UnderWay);

impl UnderWay {
    pub(super) fn one(&self) -> One<'_> {
        self.0.fetch_add(1, Ordering::Relaxed);
        One(self)
    }

    fn is_one(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 1
    }
}

impl Drop for One<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A stream that stays awake for so long after it has sent something.
pub(super) struct Awake<S> {
    stream: Together<S>,
    under_way: UnderWay,
    spin: Duration,
    /// Until when it does now.
    until: Option<Instant>,
    /// How many times in a row that was in vain, and for how many calls it is not done.
    in_vain: u32,
    rest: u32,
}

impl<S: AsyncRead + AsyncWrite + AsSocket + Unpin> Awake<S> {
    pub(super) fn new(stream: Together<S>, under_way: UnderWay, spin: Duration) -> Awake<S> {
        Awake { stream, under_way, spin, until: None, in_vain: 0, rest: 0 }
    }

    /// What has come in meanwhile, if anything has; else it is done once more, behind all others. A waker was left already.
    fn look(&mut self, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Some(until) = self.until.filter(|_| self.under_way.is_one()) else { return Poll::Pending };
        match (&*SockRef::from(self.stream.stream())).read(into.initialize_unfilled()) {
            Ok(read) => {
                into.advance(read);
                self.in_vain = 0;
                return Poll::Ready(Ok(()));
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) => return Poll::Ready(Err(error)),
        }
        if Instant::now() < until {
            // The server may have no other processor than this one.
            std::thread::yield_now();
            cx.waker().wake_by_ref();
        } else {
            self.in_vain = (self.in_vain + 1).min(MOST_IN_VAIN);
            (self.until, self.rest) = (None, 1 << self.in_vain);
        }
        Poll::Pending
    }
}

impl<S: AsyncRead + AsyncWrite + AsSocket + Unpin> AsyncRead for Awake<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut read = Pin::new(&mut self.stream).poll_read(cx, into);
        if read.is_pending() {
            read = self.look(cx, into);
        }
        if read.is_ready() {
            self.until = None;
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Awake<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, some: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, some)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let asks = !self.stream.is_empty();
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        if asks && flushed.is_ready() && self.under_way.is_one() {
            self.rest = self.rest.saturating_sub(1);
            if self.rest == 0 {
                self.until = Some(Instant::now() + self.spin);
                // Whoever sends need not read: it is made to.
                cx.waker().wake_by_ref();
            }
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::os::unix::net::UnixStream as Plain;
    use std::sync::atomic::AtomicBool;
    use std::task::Waker;
    use tokio::io::AsyncWriteExt;
    use tokio::net::UnixStream;

    const LONG: Duration = Duration::from_secs(20);

    fn pair(under_way: &UnderWay, spin: Duration) -> (Awake<UnixStream>, Plain) {
        let (ours, theirs) = Plain::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let stream = Together::new(UnixStream::from_std(ours).unwrap(), 100);
        (Awake::new(stream, under_way.clone(), spin), theirs)
    }

    /// One turn, and whether it wants another one.
    fn read(stream: &mut Awake<UnixStream>) -> (Poll<Vec<u8>>, bool) {
        let woken = Arc::new(Woken::default());
        let (mut buffer, waker) = ([0; 10], Waker::from(woken.clone()));
        let mut into = ReadBuf::new(&mut buffer);
        let read = Pin::new(stream).poll_read(&mut Context::from_waker(&waker), &mut into).map(|read| {
            read.unwrap();
            into.filled().to_vec()
        });
        (read, woken.0.load(Ordering::SeqCst))
    }

    #[derive(Default)]
    struct Woken(AtomicBool);

    impl std::task::Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    async fn ask(stream: &mut Awake<UnixStream>) {
        stream.write_all(b"question").await.unwrap();
        stream.flush().await.unwrap();
    }

    const ASLEEP: (Poll<Vec<u8>>, bool) = (Poll::Pending, false);
    const AWAKE: (Poll<Vec<u8>>, bool) = (Poll::Pending, true);

    #[tokio::test]
    async fn who_asks_alone_stays_awake_for_the_answer() {
        let under_way = UnderWay::default();
        let (mut stream, mut theirs) = pair(&under_way, LONG);
        assert_eq!(read(&mut stream), ASLEEP, "nobody has asked anything");
        let _one = under_way.one();
        assert_eq!(read(&mut stream), ASLEEP, "it was not sent yet");
        ask(&mut stream).await;
        assert_eq!(read(&mut stream), AWAKE);
        theirs.write_all(b"answer").unwrap();
        assert_eq!(read(&mut stream).0, Poll::Ready(b"answer".to_vec()), "before the runtime is told of it");
        assert_eq!(read(&mut stream), ASLEEP, "it has its answer");
        ask(&mut stream).await;
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(read(&mut stream).0, Poll::Ready(Vec::new()), "it has hung up");
    }

    #[tokio::test]
    async fn who_asks_with_others_does_not() {
        let under_way = UnderWay::default();
        let (mut stream, _theirs) = pair(&under_way, LONG);
        let one = under_way.one();
        ask(&mut stream).await;
        {
            let _two = under_way.one();
            assert_eq!(read(&mut stream), ASLEEP);
            ask(&mut stream).await;
        }
        drop(one);
        assert_eq!(read(&mut stream), ASLEEP, "nobody wants the answer any more");
    }

    #[tokio::test]
    async fn where_it_is_in_vain_it_is_done_less_and_less() {
        let under_way = UnderWay::default();
        let (mut stream, mut theirs) = pair(&under_way, Duration::ZERO);
        let _one = under_way.one();
        let mut tried = Vec::new();
        for call in 0..600 {
            ask(&mut stream).await;
            theirs.read_exact(&mut [0; 8]).unwrap();
            if stream.until.is_some() {
                tried.push(call);
                assert_eq!(read(&mut stream), ASLEEP, "its time was up at once");
            }
        }
        assert_eq!(tried, [0, 2, 6, 14, 30, 62, 126, 254, 510]);
        stream.spin = LONG;
        stream.rest = 0;
        ask(&mut stream).await;
        theirs.write_all(b"answer").unwrap();
        assert_eq!(read(&mut stream).0, Poll::Ready(b"answer".to_vec()));
        ask(&mut stream).await;
        assert_eq!(read(&mut stream), AWAKE, "it pays again");
    }
}

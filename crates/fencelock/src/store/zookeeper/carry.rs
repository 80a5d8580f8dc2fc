//! Who carries a session. The client for ZooKeeper wants a task of some runtime for it; on the library thread, each question would
//! go to that thread first and each answer come back by it: two more wake-ups for each. But such a session needs no runtime, since the
//! client's own thread tells of its socket and its timers. So it is carried by whoever calls it: the thread that asks sends its question
//! itself, and the client's thread takes the answer and wakes whoever asked. No thread of the program has to be idle for that, so
//! a session outlives a blocked runtime, and also the end of one.

use spawns_core::{Spawn, Task};
use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use tokio::runtime::Handle;

/// Nobody carries it now.
const IDLE: u8 = 0;
/// Somebody does.
const CARRIED: u8 = 1;
/// And will have to once more: there was another call meanwhile.
const AGAIN: u8 = 2;
/// It has ended.
const OVER: u8 = 3;

/// So often in a row a thread goes on with what others have called for meanwhile. Then the runtime that opened the session does: nobody
/// has to carry all that the others ask for ever.
const IN_A_ROW: usize = 16;

thread_local! {
    /// Those that were called while this thread still had more to say to them.
    static PUT_OFF: RefCell<Option<Vec<Arc<Carried>>>> = const { RefCell::new(None) };
}

/// A session's work.
struct Carried {
    state: AtomicU8,
    /// Only whoever carries it looks in here.
    work: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
    runtime: Option<Handle>,
}

impl Carried {
    /// Goes on with it here and now, unless somebody else does: then that one goes on once more.
    fn carry(self: &Arc<Self>) {
        let called = |state| match state {
            IDLE => Some(CARRIED),
            CARRIED => Some(AGAIN),
            _ => None,
        };
        if self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, called) != Ok(IDLE) {
            return;
        }
        let often = if self.runtime.is_some() { IN_A_ROW } else { usize::MAX };
        if let (false, Some(runtime)) = (self.go_on(often), &self.runtime) {
            let next = Next(self.clone());
            runtime.spawn(async move { drop(next) });
        }
    }

    /// So often at most, by whoever carries it. Says whether there is nothing left to be done.
    fn go_on(self: &Arc<Self>, often: usize) -> bool {
        let waker = Waker::from(self.clone());
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..often {
            let polled = work.as_mut().map(|work| work.as_mut().poll(&mut Context::from_waker(&waker)));
            if polled != Some(Poll::Pending) {
                *work = None;
                self.state.store(OVER, Ordering::Release);
                return true;
            }
            let idle = self.state.compare_exchange(CARRIED, IDLE, Ordering::AcqRel, Ordering::Acquire);
            if idle.is_ok() {
                return true;
            }
            self.state.store(CARRIED, Ordering::Release);
        }
        false
    }
}

/// Whoever carries next. A runtime that has ended drops it instead, which is as good.
struct Next(Arc<Carried>);

impl Drop for Next {
    fn drop(&mut self) {
        self.0.go_on(usize::MAX);
    }
}

impl Wake for Carried {
    fn wake(self: Arc<Self>) {
        let put_off = PUT_OFF.try_with(|put_off| match &mut *put_off.borrow_mut() {
            Some(later) => {
                if !later.iter().any(|other| Arc::ptr_eq(other, &self)) {
                    later.push(self.clone());
                }
                true
            }
            None => false,
        });
        if !put_off.unwrap_or(false) {
            self.carry();
        }
    }
}

/// What the client wants to be a task is carried.
struct Carriers;

impl Spawn for Carriers {
    fn spawn(&self, task: Task) {
        let work = Mutex::new(Some(Box::into_pin(task.future)));
        let runtime = Handle::try_current().ok();
        Arc::new(Carried { state: AtomicU8::new(IDLE), work, runtime }).carry();
    }
}

/// Connects, so that the session which is made by it is carried.
pub(super) async fn carried<T>(connecting: impl Future<Output = T>) -> T {
    let mut connecting = pin!(connecting);
    poll_fn(|cx| {
        let _scope = spawns_core::enter(&Carriers);
        connecting.as_mut().poll(cx)
    })
    .await
}

/// Questions that are put in here leave in one packet.
pub(super) fn in_one_packet<T>(ask: impl FnOnce() -> T) -> T {
    struct Outer(Option<Vec<Arc<Carried>>>);
    impl Drop for Outer {
        fn drop(&mut self) {
            let called = PUT_OFF.replace(self.0.take());
            called.into_iter().flatten().for_each(Wake::wake);
        }
    }
    let _outer = Outer(PUT_OFF.replace(Some(Vec::new())));
    ask()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc;
    use std::time::Duration;

    /// Whatever is to be done at each turn, and whether that was the last one.
    fn carry(runtime: Option<Handle>, turn: impl FnMut(&Waker) -> bool + Send + 'static) -> Arc<Carried> {
        let mut turn = turn;
        let work = poll_fn(move |cx| if turn(cx.waker()) { Poll::Ready(()) } else { Poll::Pending });
        let work: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(work);
        Arc::new(Carried { state: AtomicU8::new(IDLE), work: Mutex::new(Some(work)), runtime })
    }

    #[test]
    fn whoever_calls_carries_and_several_calls_in_one_packet_are_one() {
        let turns = Arc::new(AtomicUsize::new(0));
        let counted = turns.clone();
        let carried = carry(None, move |_| counted.fetch_add(1, Ordering::SeqCst) == 2);
        let waker = Waker::from(carried.clone());
        waker.wake_by_ref();
        assert_eq!(turns.load(Ordering::SeqCst), 1, "it was carried at once");
        in_one_packet(|| {
            waker.wake_by_ref();
            in_one_packet(|| waker.wake_by_ref());
            assert_eq!(turns.load(Ordering::SeqCst), 1, "there may be more to come");
        });
        assert_eq!(turns.load(Ordering::SeqCst), 2, "once for all of it");
        waker.wake_by_ref();
        waker.wake_by_ref();
        assert_eq!(turns.load(Ordering::SeqCst), 3, "it has ended");
        assert!(carried.work.lock().unwrap().is_none(), "what it held on to is let go");
    }

    #[test]
    fn a_call_while_somebody_carries_is_not_lost() {
        let (called, calls) = mpsc::channel::<()>();
        let (went_in, goes_in) = mpsc::channel();
        let turns = Arc::new(AtomicUsize::new(0));
        let counted = turns.clone();
        let carried = carry(None, move |_| {
            if counted.fetch_add(1, Ordering::SeqCst) == 0 {
                went_in.send(()).unwrap();
                calls.recv_timeout(Duration::from_secs(20)).unwrap();
            }
            false
        });
        let first = std::thread::spawn({
            let carried = carried.clone();
            move || Waker::from(carried).wake()
        });
        goes_in.recv_timeout(Duration::from_secs(20)).unwrap();
        // Comes back at once, though the other is in the middle of it.
        Waker::from(carried.clone()).wake();
        assert_eq!(turns.load(Ordering::SeqCst), 1);
        called.send(()).unwrap();
        first.join().unwrap();
        assert_eq!(turns.load(Ordering::SeqCst), 2, "the one who carried went on once more");
    }

    #[test]
    fn nobody_carries_for_ever_what_others_ask_for() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let turns = Arc::new(AtomicUsize::new(0));
        let counted = turns.clone();
        let all = 3 * IN_A_ROW;
        let restless = move |waker: &Waker| {
            waker.wake_by_ref();
            counted.fetch_add(1, Ordering::SeqCst) + 1 == all
        };
        let carried = carry(Some(runtime.handle().clone()), restless);
        Waker::from(carried.clone()).wake();
        assert_eq!(turns.load(Ordering::SeqCst), IN_A_ROW, "the caller has its own to do");
        // A runtime that ends does it as well: nothing is left lying.
        drop(runtime);
        assert_eq!(turns.load(Ordering::SeqCst), all);
        assert!(carried.work.lock().unwrap().is_none());
    }
}

//! Asking all nodes at once: each call is a task of its own, which goes on when the asker has heard enough. A call is never
//! cut off in the middle, so that a connection that has to be opened first gets opened, although its first call has no vote.

use super::Shared;
use crate::clock::Sleep;
use crate::error::{Error, Result};
use futures_util::future::{Either, select};
use std::pin::pin;
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

/// What the nodes say, as it comes in.
pub(super) struct Answers<T> {
    heard: mpsc::UnboundedReceiver<(usize, Result<T>)>,
    /// Who has not answered yet.
    open: Vec<usize>,
    limit: Sleep,
    over: bool,
}

impl<T> Answers<T> {
    /// The next answer; a node that took too long has failed. `None` when there is nobody left to wait for.
    pub(super) async fn next(&mut self) -> Option<(usize, Result<T>)> {
        loop {
            if self.over {
                return self.open.pop().map(|node| (node, Err(Error::unknown("no answer in time"))));
            }
            if self.open.is_empty() {
                return None;
            }
            match select(pin!(self.heard.recv()), &mut self.limit).await {
                Either::Left((Some((node, answer)), _)) => {
                    self.open.retain(|other| *other != node);
                    return Some((node, answer));
                }
                // The runtime that carried the calls has ended.
                Either::Left((None, _)) | Either::Right(_) => self.over = true,
            }
        }
    }
}

impl Shared {
    /// A task for the runtime that we are called from, or else for the library thread's.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        match (Handle::try_current(), self.host.get()) {
            (Ok(here), _) => drop(here.spawn(task)),
            (Err(_), Some(host)) => host.spawn(task),
            (Err(_), None) => {}
        }
    }

    /// Asks every node.
    pub(super) fn ask<T, F>(
        self: &Arc<Self>,
        call: impl Fn(Arc<Shared>, usize) -> F + Clone + Send + 'static,
    ) -> Answers<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.ask_these((0..self.nodes.len()).collect(), call)
    }

    /// Asks some of them.
    pub(super) fn ask_these<T, F>(
        self: &Arc<Self>,
        nodes: Vec<usize>,
        call: impl Fn(Arc<Shared>, usize) -> F + Clone + Send + 'static,
    ) -> Answers<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let (tell, heard) = mpsc::unbounded_channel();
        for node in &nodes {
            let (node, tell, call, shared) = (*node, tell.clone(), call.clone(), self.clone());
            self.spawn(async move {
                let answer = call(shared, node).await;
                let _ = tell.send((node, answer));
            });
        }
        let limit = self.clock.now().after(self.settings.node_timeout);
        Answers { heard, open: nodes, limit: self.clock.sleep_until(limit), over: false }
    }
}

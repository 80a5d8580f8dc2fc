//! The channels that this client listens to in a cluster, and on which node each is subscribed: no I/O. A line's inbox is
//! wanted from the first ticket that queues until a while after the last one, a line's changes from the first watcher until a
//! while after the last one.

use super::Node;
use super::slots::slot;
use crate::clock::Moment;
use crate::name::Name;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// A channel that nobody needs is kept for this long: a line that is contended would otherwise be subscribed to again and
/// again.
pub(crate) const LINGER: Duration = Duration::from_secs(5);

/// The channels of one client.
pub(crate) struct Channels {
    book: Mutex<Book>,
    /// Changes when one was subscribed.
    subscribed: watch::Sender<u64>,
}

#[derive(Default)]
struct Book {
    channels: HashMap<String, Channel>,
    /// How often a subscription was confirmed.
    confirmed: u64,
    /// How many connections have listened.
    listening: u64,
}

struct Channel {
    name: Name,
    slot: u16,
    up: Option<Up>,
    used: Moment,
    /// How many watch it. An inbox has none.
    watchers: usize,
}

/// Where it is subscribed, and since which confirmation.
struct Up {
    node: Arc<Node>,
    since: u64,
}

impl Default for Channels {
    fn default() -> Self {
        Channels { book: Mutex::default(), subscribed: watch::Sender::new(0) }
    }
}

impl Channels {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Since which confirmation this channel is heard, if it is. Whoever asks is going to use it.
    pub(crate) fn heard_since(&self, channel: &str, now: Moment) -> Option<u64> {
        let mut book = self.book();
        let channel = book.channels.get_mut(channel)?;
        channel.used = now;
        channel.up.as_ref().map(|up| up.since)
    }

    /// This channel has to be heard from now on. Says since which confirmation it is.
    pub(crate) fn want(&self, channel: &str, name: &Name, watchers: usize, now: Moment) -> Option<u64> {
        let mut book = self.book();
        let new = || Channel { name: name.clone(), slot: slot(channel), up: None, used: now, watchers: 0 };
        let channel = book.channels.entry(channel.to_string()).or_insert_with(new);
        channel.used = now;
        channel.watchers += watchers;
        channel.up.as_ref().map(|up| up.since)
    }

    /// One watcher less.
    pub(crate) fn unwatch(&self, channel: &str, now: Moment) {
        if let Some(channel) = self.book().channels.get_mut(channel) {
            channel.watchers = channel.watchers.saturating_sub(1);
            channel.used = now;
        }
    }

    /// What is watched.
    pub(crate) fn watched(&self) -> Vec<Name> {
        let book = self.book();
        book.channels.values().filter(|channel| channel.watchers > 0).map(|channel| channel.name.clone()).collect()
    }

    /// What `node` has to subscribe to, if it owns these slots.
    pub(crate) fn missing_on(&self, node: &Arc<Node>, owns: impl Fn(u16) -> bool) -> Vec<String> {
        let missing =
            |channel: &Channel| owns(channel.slot) && channel.up.as_ref().is_none_or(|up| !Arc::ptr_eq(&up.node, node));
        let book = self.book();
        book.channels.iter().filter(|(_, channel)| missing(channel)).map(|(name, _)| name.clone()).collect()
    }

    /// From now on this is the connection on which the node is listened to.
    pub(crate) fn listening(&self, node: &Arc<Node>) -> u64 {
        let mut book = self.book();
        book.listening += 1;
        node.listening.store(book.listening, Ordering::Relaxed);
        book.listening
    }

    /// The node has confirmed it on this connection. Whose line it is, and whether it is watched; `None` if that connection
    /// does not count any more, or nobody wants it any more.
    pub(crate) fn confirmed(&self, channel: &str, node: &Arc<Node>, connection: u64) -> Option<(Name, bool)> {
        let mut book = self.book();
        if node.listening.load(Ordering::Relaxed) != connection {
            return None;
        }
        book.confirmed += 1;
        let since = book.confirmed;
        let told = book.channels.get_mut(channel).map(|channel| {
            channel.up = Some(Up { node: node.clone(), since });
            (channel.name.clone(), channel.watchers > 0)
        });
        if told.is_none() {
            node.leave(channel.to_string());
        }
        drop(book);
        self.subscribed.send_replace(since);
        told
    }

    /// The line whose changes this channel tells, if somebody watches it.
    pub(crate) fn watched_line(&self, channel: &str) -> Option<Name> {
        let book = self.book();
        book.channels.get(channel).filter(|channel| channel.watchers > 0).map(|channel| channel.name.clone())
    }

    /// Ready when another one was confirmed.
    pub(crate) fn confirmations(&self) -> watch::Receiver<u64> {
        self.subscribed.subscribe()
    }

    /// The node says on this connection that it is not subscribed there any more. Says whether it should have been.
    pub(crate) fn lost(&self, channel: &str, node: &Arc<Node>, connection: u64) -> bool {
        let mut book = self.book();
        if node.listening.load(Ordering::Relaxed) != connection {
            return false;
        }
        let up = book.channels.get_mut(channel).map(|channel| &mut channel.up);
        up.is_some_and(|up| up.take_if(|up| Arc::ptr_eq(&up.node, node)).is_some())
    }

    /// The connection to this node is lost, and everything that was subscribed on it. Whatever it still says does not count.
    pub(crate) fn node_lost(&self, node: &Arc<Node>) {
        let mut book = self.book();
        node.listening.store(0, Ordering::Relaxed);
        for channel in book.channels.values_mut() {
            channel.up.take_if(|up| Arc::ptr_eq(&up.node, node));
        }
    }

    /// Drops what nobody has used for a while, except for the lines in which somebody waits.
    pub(crate) fn sweep(&self, waiting: &HashSet<Name>, now: Moment) {
        let mut book = self.book();
        let idle = |channel: &Channel| channel.watchers == 0 && now >= channel.used.after(LINGER);
        let idle = book.channels.iter().filter(|(_, channel)| idle(channel) && !waiting.contains(&channel.name));
        let idle: Vec<String> = idle.map(|(name, _)| name.clone()).collect();
        idle.iter().for_each(|channel| book.drop_channel(channel));
        for channel in book.channels.values_mut().filter(|channel| waiting.contains(&channel.name)) {
            channel.used = now;
        }
    }
}

impl Book {
    fn drop_channel(&mut self, channel: &str) {
        if let Some(up) = self.channels.remove(channel).and_then(|channel| channel.up) {
            up.node.leave(channel.to_string());
        }
    }
}

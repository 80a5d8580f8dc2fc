//! How processes wake each other: one Unix datagram socket per client, in a folder beside the store file.
//!
//! The folder is used through its descriptor, since a socket's path ends at 108 bytes. Sending never waits. A message is a
//! hint, the file has the answer; one that is lost is made up for by the store's tick. Elsewhere than on Linux there are no
//! sockets, and the tick is faster instead.

use crate::name::Name;
use crate::store::TicketId;

/// What one client tells another.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// This ticket is inside.
    Inside(TicketId),
    /// This ticket is gone.
    Gone(TicketId),
    /// Something has changed in this line.
    Changed(Name),
}

impl Message {
    /// A letter, and then the ticket's id or the line's name; what the user calls it, where that differs, comes last.
    fn write(&self) -> Vec<u8> {
        match self {
            Message::Inside(id) => [b"I", &id.as_bytes()[..]].concat(),
            Message::Gone(id) => [b"G", &id.as_bytes()[..]].concat(),
            Message::Changed(name) => match name.long() {
                Some(long) => [b"C", name.key().as_bytes(), b"\0", long.as_bytes()].concat(),
                None => [b"C", name.key().as_bytes()].concat(),
            },
        }
    }

    /// `None` for what nobody of us can have sent.
    fn read(bytes: &[u8]) -> Option<Message> {
        let (letter, rest) = bytes.split_first()?;
        let id = || Some(TicketId::from_bytes(rest.try_into().ok()?));
        match letter {
            b'I' => Some(Message::Inside(id()?)),
            b'G' => Some(Message::Gone(id()?)),
            b'C' => {
                let text = std::str::from_utf8(rest).ok()?;
                Some(Message::Changed(match text.split_once('\0') {
                    Some((key, long)) => Name::from_key(key, Some(long)),
                    None => Name::from_key(text, None),
                }))
            }
            _ => None,
        }
    }
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// It is on its way, or its receiver has so many that it will look everywhere anyway.
    Yes,
    /// There is no such client.
    Nobody,
}

#[cfg(target_os = "linux")]
pub(super) use linux::{Bell, Post};

#[cfg(target_os = "linux")]
mod linux {
    use super::{Message, Sent};
    use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
    use rustix::fs::{AtFlags, Mode, OFlags};
    use std::io;
    use std::os::fd::{AsFd, AsRawFd, OwnedFd};
    use std::os::unix::fs::{DirBuilderExt, MetadataExt};
    use std::os::unix::net::UnixDatagram;
    use std::path::{Path, PathBuf};
    use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
    use std::time::Duration;

    /// The folder of the sockets, and this client's own.
    #[derive(Debug)]
    pub(crate) struct Post {
        folder: PathBuf,
        file: PathBuf,
        me: String,
        state: Mutex<State>,
    }

    #[derive(Debug, Default)]
    struct State {
        folder: Option<OwnedFd>,
        sender: Option<UnixDatagram>,
        inbox: Option<Arc<UnixDatagram>>,
        closed: bool,
    }

    impl Post {
        pub(crate) fn new(folder: PathBuf, file: PathBuf, me: String) -> Post {
            Post { folder, file, me, state: Mutex::default() }
        }

        fn state(&self) -> MutexGuard<'_, State> {
            self.state.lock().unwrap_or_else(PoisonError::into_inner)
        }

        /// Opens this client's socket, or opens it again if its file has gone.
        pub(crate) fn open(&self) -> io::Result<()> {
            let mut state = self.state();
            if state.closed || (state.inbox.is_some() && self.is_there(&state)) {
                return Ok(());
            }
            let first = state.inbox.is_none();
            state.inbox = None;
            self.open_folder(&mut state, true)?;
            let socket = self.bind(&state).or_else(|_| self.bind(&state))?;
            state.inbox = Some(Arc::new(socket));
            if first {
                self.sweep(&state);
            }
            Ok(())
        }

        /// Under a passing name first: for a moment there is a file that nobody listens to yet, which others may remove. If
        /// they do, renaming it fails, and it is tried again.
        fn bind(&self, state: &State) -> io::Result<UnixDatagram> {
            let draft = at(state.folder.as_ref(), &format!("{}.new", self.me));
            let _ = std::fs::remove_file(&draft);
            let socket = UnixDatagram::bind(&draft)?;
            socket.set_nonblocking(true)?;
            std::fs::set_permissions(&draft, std::os::unix::fs::PermissionsExt::from_mode(self.modes().1))?;
            std::fs::rename(&draft, at(state.folder.as_ref(), &self.me))?;
            Ok(socket)
        }

        /// Whether this client can be told.
        pub(crate) fn is_open(&self) -> bool {
            self.state().inbox.is_some()
        }

        fn is_there(&self, state: &State) -> bool {
            let Some(folder) = &state.folder else { return false };
            let same = |about: rustix::fs::Stat| {
                std::fs::metadata(&self.folder).is_ok_and(|now| now.ino() == about.st_ino && now.dev() == about.st_dev)
            };
            rustix::fs::statat(folder, self.me.as_str(), AtFlags::SYMLINK_NOFOLLOW).is_ok()
                && rustix::fs::fstat(folder).is_ok_and(same)
        }

        /// The folder's and the sockets' modes: whoever may write the file may wake its users.
        fn modes(&self) -> (u32, u32) {
            let file = std::fs::metadata(&self.file).map_or(0o600, |about| about.mode());
            let others = |bits: u32, all: u32| if file & bits == bits { all } else { 0 };
            let folder = 0o700 | others(0o060, 0o070) | others(0o006, 0o1007);
            (folder, 0o600 | others(0o060, 0o060) | others(0o006, 0o006))
        }

        fn open_folder(&self, state: &mut State, create: bool) -> io::Result<()> {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            if create {
                let mode = self.modes().0;
                match std::fs::DirBuilder::new().mode(mode).create(&self.folder) {
                    // The mask of the process may have taken bits away.
                    Ok(()) => {
                        std::fs::set_permissions(&self.folder, std::os::unix::fs::PermissionsExt::from_mode(mode))?
                    }
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                    Err(error) => return Err(error),
                }
            }
            state.folder = Some(rustix::fs::open(&self.folder, flags, Mode::empty())?);
            Ok(())
        }

        /// Sends without waiting. The file of a socket that nobody listens to any more is removed.
        pub(crate) fn send(&self, client: &str, message: &Message) -> Sent {
            // A name that we did not make must not lead out of the folder.
            if client.is_empty() || !client.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                return Sent::Nobody;
            }
            let mut state = self.state();
            if state.folder.is_none() && self.open_folder(&mut state, false).is_err() {
                return Sent::Nobody;
            }
            if state.sender.is_none() {
                let sender = UnixDatagram::unbound().and_then(|sender| {
                    sender.set_nonblocking(true)?;
                    Ok(sender)
                });
                state.sender = sender.ok();
            }
            let bytes = message.write();
            for again in [false, true] {
                let Some(sender) = &state.sender else { return Sent::Yes };
                let path = at(state.folder.as_ref(), client);
                let Err(error) = sender.send_to(&bytes, &path) else { return Sent::Yes };
                match error.kind() {
                    io::ErrorKind::ConnectionRefused => {
                        let _ = std::fs::remove_file(&path);
                        return Sent::Nobody;
                    }
                    // Perhaps the folder itself was removed and made again.
                    io::ErrorKind::NotFound if !again && self.open_folder(&mut state, false).is_ok() => {}
                    io::ErrorKind::NotFound => return Sent::Nobody,
                    // Its queue is full: it will look everywhere.
                    _ => return Sent::Yes,
                }
            }
            Sent::Nobody
        }

        /// Everything that has arrived; the flag says that something may have been lost before it.
        pub(crate) fn receive(&self) -> (Vec<Message>, bool) {
            let state = self.state();
            let Some(inbox) = &state.inbox else { return (Vec::new(), false) };
            let mut messages = Vec::new();
            let mut count = 0;
            let mut bytes = [0; 2048];
            while let Ok(length) = inbox.recv(&mut bytes) {
                count += 1;
                messages.extend(Message::read(&bytes[..length]));
            }
            // A sender finds the queue full only while this many are in it, and all of those were read just now.
            (messages, count >= longest_queue())
        }

        /// Removes the socket. Nothing is opened any more.
        pub(crate) fn close(&self) {
            let mut state = self.state();
            state.closed = true;
            if state.inbox.take().is_some() {
                let _ = std::fs::remove_file(at(state.folder.as_ref(), &self.me));
            }
        }

        /// Removes the sockets of processes that were killed.
        fn sweep(&self, state: &State) {
            let Ok(files) = std::fs::read_dir(&self.folder) else { return };
            for file in files.flatten() {
                let name = file.file_name();
                let Some(name) = name.to_str().filter(|name| *name != self.me) else { continue };
                let path = at(state.folder.as_ref(), name);
                let probe = UnixDatagram::unbound().and_then(|probe| probe.connect(&path));
                if probe.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
                    let _ = std::fs::remove_file(&path);
                }
            }
        }
    }

    /// A file of the folder, by a path that is short however long the folder's is.
    fn at(folder: Option<&OwnedFd>, name: &str) -> PathBuf {
        let folder = folder.map_or(-1, AsRawFd::as_raw_fd);
        Path::new("/proc/self/fd").join(folder.to_string()).join(name)
    }

    /// How many datagrams a socket holds.
    fn longest_queue() -> usize {
        static LONGEST: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
        *LONGEST.get_or_init(|| {
            let set = std::fs::read_to_string("/proc/sys/net/unix/max_dgram_qlen").ok();
            set.and_then(|set| set.trim().parse().ok()).unwrap_or(10).max(1)
        })
    }

    /// What the store's thread waits at: a bell that others ring, and the inbox.
    #[derive(Debug)]
    pub(crate) struct Bell(OwnedFd);

    impl Bell {
        pub(crate) fn new() -> io::Result<Bell> {
            Ok(Bell(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
        }

        pub(crate) fn ring(&self) {
            // It can only fail if the bell has rung 2^64 times and nobody came.
            let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
        }

        /// Until it rings, something arrives, or the time is up.
        pub(crate) fn wait(&self, post: &Post, at_most: Option<Duration>) {
            let inbox = post.state().inbox.clone();
            let mut fds = vec![PollFd::from_borrowed_fd(self.0.as_fd(), PollFlags::IN)];
            fds.extend(inbox.as_ref().map(|inbox| PollFd::from_borrowed_fd(inbox.as_fd(), PollFlags::IN)));
            let timeout = at_most.and_then(|time| Timespec::try_from(time).ok());
            let _ = poll(&mut fds, timeout.as_ref());
            let _ = rustix::io::read(&self.0, &mut [0; 8]);
        }
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) use elsewhere::{Bell, Post};

#[cfg(not(target_os = "linux"))]
mod elsewhere {
    use super::{Message, Sent};
    use std::io;
    use std::path::PathBuf;
    use std::sync::{Condvar, Mutex, PoisonError};
    use std::time::Duration;

    /// No sockets here.
    #[derive(Debug)]
    pub(crate) struct Post;

    impl Post {
        pub(crate) fn new(_: PathBuf, _: PathBuf, _: String) -> Post {
            Post
        }

        pub(crate) fn open(&self) -> io::Result<()> {
            Ok(())
        }

        pub(crate) fn is_open(&self) -> bool {
            false
        }

        pub(crate) fn send(&self, _: &str, message: &Message) -> Sent {
            let _ = message.write();
            Sent::Yes
        }

        pub(crate) fn receive(&self) -> (Vec<Message>, bool) {
            (Message::read(&[]).into_iter().collect(), false)
        }

        pub(crate) fn close(&self) {}
    }

    /// What the store's thread waits at.
    #[derive(Debug, Default)]
    pub(crate) struct Bell(Mutex<bool>, Condvar);

    impl Bell {
        pub(crate) fn new() -> io::Result<Bell> {
            Ok(Bell::default())
        }

        pub(crate) fn ring(&self) {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
            self.1.notify_one();
        }

        pub(crate) fn wait(&self, _: &Post, at_most: Option<Duration>) {
            let rung = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let at_most = at_most.unwrap_or(Duration::from_secs(3600));
            let waited = self.1.wait_timeout_while(rung, at_most, |rung| !*rung);
            *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_can_be_read_back() {
        let id = TicketId::new();
        let long = Name::new("", &"x".repeat(300)).unwrap();
        for message in [
            Message::Inside(id),
            Message::Gone(id),
            Message::Changed(Name::new("", "a/b").unwrap()),
            Message::Changed(long),
        ] {
            assert_eq!(Message::read(&message.write()), Some(message));
        }
        for nonsense in [&b""[..], b"I", b"Gshort", b"?", b"C\xff"] {
            assert_eq!(Message::read(nonsense), None);
        }
    }
}

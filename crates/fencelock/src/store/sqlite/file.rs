//! The store file itself: where it may be, how it comes into being, how it is opened, and whether it is still the one that
//! was opened.

use super::fault::explain;
use crate::error::{Error, ErrorKind, Result};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, TransactionBehavior};
use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// `fenl`, so that `file(1)` and we can tell whose file it is.
const APPLICATION: i32 = 0x6665_6e6c;
/// The layout of [`SCHEMA`].
pub(super) const LAYOUT: i32 = 1;
const SCHEMA: &str = include_str!("schema.sql");
/// A commit writes whole pages: smaller ones made a lock and its release a fifth faster. A ticket still fits into a quarter
/// of a page, beyond which SQLite would need a second one for it.
const PAGE: u32 = 2048;
/// Opening may wait this long for others who open, create or clear up.
const OPENING: Duration = Duration::from_secs(10);

/// The file that was opened, by what the file system calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity(u64, u64);

/// Where the store is.
#[derive(Debug)]
pub(super) struct StoreFile {
    /// Absolute, with all links of its folder resolved.
    pub(super) path: PathBuf,
    identity: Identity,
}

impl StoreFile {
    /// Finds the file, or creates it. Refuses places where locks would not hold.
    pub(super) fn find(path: &Path) -> Result<StoreFile> {
        let cannot = |what: &str, error: io::Error| {
            let kind = if error.kind() == io::ErrorKind::PermissionDenied {
                ErrorKind::Denied
            } else {
                ErrorKind::Unavailable
            };
            Error::new(kind, format!("{what} {}", path.display())).caused_by(error)
        };
        let Some(file_name) = path.file_name() else {
            return Err(Error::new(ErrorKind::InvalidInput, format!("{:?} names no file", path.display())));
        };
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        create_folder(folder).map_err(|error| cannot("cannot create the folder of the store file", error))?;
        let folder =
            folder.canonicalize().map_err(|error| cannot("cannot find the folder of the store file", error))?;
        let path = folder.join(file_name);
        let about = fs::metadata(&folder).map_err(|error| cannot("cannot read the folder of the store file", error))?;
        check_file_system(&folder)?;
        check_folder(&folder, &about)?;
        let found = match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                create(&path)?;
                fs::symlink_metadata(&path)
            }
            found => found,
        };
        let found = found.map_err(|error| cannot("cannot read the store file", error))?;
        if found.is_symlink() {
            let message =
                format!("the store file {} is a symbolic link: give the path that it points to", path.display());
            return Err(Error::new(ErrorKind::Denied, message));
        }
        if !found.is_file() {
            return Err(Error::new(ErrorKind::InvalidInput, format!("{} is not a file", path.display())));
        }
        check_owner(&path, &about, &found)?;
        Ok(StoreFile { path, identity: identity(&found) })
    }

    /// Whether the path still leads to the file that was opened. One system call.
    ///
    /// The file must not be opened to find out: closing it would drop the locks that SQLite has on it in this process.
    pub(super) fn is_in_place(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok_and(|found| identity(&found) == self.identity)
    }

    /// The error that says that it is not.
    pub(super) fn moved(&self) -> Error {
        let message = format!(
            "the store file {} was moved, deleted or replaced while it was in use: put it back, or start again",
            self.path.display()
        );
        Error::new(ErrorKind::Broken, message)
    }

    /// Opens a connection. A commit of a `durable` one is synced to the disk.
    pub(super) fn connect(&self, durable: bool) -> Result<Connection> {
        let conn = open(&self.path, durable).map_err(|error| explain(error, &self.path))?;
        // Between the look at the file and its opening it may have been exchanged.
        if self.is_in_place() { Ok(conn) } else { Err(self.moved()) }
    }

    /// Makes sure that the layout is ours; fills a file that is still empty.
    pub(super) fn check_layout(&self, conn: &Connection) -> Result<()> {
        let (application, layout, objects) = layout_of(conn).map_err(|error| explain(error, &self.path))?;
        let path = self.path.display();
        match (application, layout, objects) {
            (APPLICATION, LAYOUT, _) => Ok(()),
            (0, 0, 0) => {
                retry(|| fill(conn)).map_err(|error| explain(error, &self.path))?;
                self.check_layout(conn)
            }
            (APPLICATION, other, _) => {
                let message = format!(
                    "the store file {path} has layout {other}, this program knows layout {LAYOUT}: use the same version \
                     of fencelock everywhere, or another file"
                );
                Err(Error::new(ErrorKind::Broken, message))
            }
            _ => {
                let message = format!(
                    "{path} is somebody else's database (application id {application}, layout {layout}), not a fencelock \
                     store with application id {APPLICATION}, layout {LAYOUT}: choose a file of its own"
                );
                Err(Error::new(ErrorKind::Broken, message))
            }
        }
    }

    /// Brings what was committed to the disk. Unlike the file, the log may be opened: SQLite has no locks on it.
    pub(super) fn sync_log(&self) -> io::Result<()> {
        fs::File::open(self.beside("-wal"))?.sync_data()
    }

    /// A path beside the file.
    pub(super) fn beside(&self, ending: &str) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        path.push(ending);
        path.into()
    }
}

fn open(path: &Path, durable: bool) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let conn = Connection::open_with_flags(path, flags)?;
    conn.set_prepared_statement_cache_capacity(64);
    conn.busy_timeout(Duration::ZERO)?;
    // Checkpoints sync to the disk: the store's thread makes them, not whoever happens to commit, or to close.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    // Otherwise statements are planned anew whenever their parameters change, which doubles what they cost.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    retry(|| {
        conn.pragma_update(None, "wal_autocheckpoint", 0)?;
        conn.pragma_update(None, "synchronous", if durable { "FULL" } else { "NORMAL" })
    })?;
    Ok(conn)
}

/// Runs something again until others let us, for a while.
pub(super) fn retry<T>(mut act: impl FnMut() -> rusqlite::Result<T>) -> rusqlite::Result<T> {
    let start = Instant::now();
    loop {
        match act() {
            Err(error) if super::fault::is_busy(&error) && start.elapsed() < OPENING => {
                std::thread::sleep(Duration::from_micros(500));
            }
            done => return done,
        }
    }
}

fn layout_of(conn: &Connection) -> rusqlite::Result<(i32, i32, i64)> {
    retry(|| {
        let pragma = |name| conn.pragma_query_value(None, name, |row| row.get(0));
        let objects = conn.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
        Ok((pragma("application_id")?, pragma("user_version")?, objects))
    })
}

/// Writes the layout into an empty file.
fn fill(conn: &Connection) -> rusqlite::Result<()> {
    conn.pragma_update(None, "page_size", PAGE)?;
    conn.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
    let txn = rusqlite::Transaction::new_unchecked(conn, TransactionBehavior::Immediate)?;
    // Somebody else may have done it meanwhile.
    if txn.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get::<_, i64>(0))? > 0 {
        return Ok(());
    }
    txn.execute_batch(SCHEMA)?;
    txn.pragma_update(None, "application_id", APPLICATION)?;
    txn.pragma_update(None, "user_version", LAYOUT)?;
    txn.commit()
}

/// Creates the file under another name, complete and synced, and gives it its own: nobody ever meets half of it, and of many
/// who create it at once one wins.
fn create(path: &Path) -> Result<()> {
    let cannot = |error: io::Error| {
        let denied = matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem);
        let kind = if denied { ErrorKind::Denied } else { ErrorKind::Unavailable };
        Error::new(kind, format!("cannot create the store file {}", path.display())).caused_by(error)
    };
    let mut draft = path.to_path_buf().into_os_string();
    draft.push(format!(".new-{}", super::random_name()));
    let draft = Draft(draft.into());
    new_file(&draft.0).map_err(cannot)?;
    let fault = |error| explain(error, path);
    let conn = Connection::open(&draft.0).map_err(fault)?;
    conn.pragma_update(None, "synchronous", "FULL").map_err(fault)?;
    fill(&conn).map_err(fault)?;
    // Closing it writes everything into the one file and takes the log away.
    conn.close().map_err(|(_, error)| fault(error))?;
    publish(&draft.0, path).map_err(cannot)
}

/// Gives a complete file its name, unless somebody else was faster. One at a time: a log that was left behind by a file that
/// is no longer there must go, or SQLite would take it for the new file's; the log of a new file must not.
#[cfg(unix)]
fn publish(draft: &Path, path: &Path) -> io::Result<()> {
    let folder = fs::File::open(path.parent().unwrap_or(Path::new("/")))?;
    let start = Instant::now();
    while let Err(error) = folder.try_lock() {
        match error {
            fs::TryLockError::WouldBlock if start.elapsed() < OPENING => std::thread::sleep(Duration::from_millis(1)),
            error => return Err(error.into()),
        }
    }
    if fs::symlink_metadata(path).is_ok() {
        return Ok(());
    }
    for ending in ["-wal", "-shm"] {
        let mut left = path.to_path_buf().into_os_string();
        left.push(ending);
        match fs::remove_file(left) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    fs::hard_link(draft, path)?;
    folder.sync_all()
}

/// Folders cannot be locked here: whoever moves a store file away has to take its log along.
#[cfg(not(unix))]
fn publish(draft: &Path, path: &Path) -> io::Result<()> {
    match fs::hard_link(draft, path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// A file under a passing name, removed in the end with what SQLite may have put beside it.
struct Draft(PathBuf);

impl Drop for Draft {
    fn drop(&mut self) {
        for ending in ["", "-wal", "-shm", "-journal"] {
            let mut path = self.0.clone().into_os_string();
            path.push(ending);
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(unix)]
fn new_file(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map(drop)
}

#[cfg(not(unix))]
fn new_file(path: &Path) -> io::Result<()> {
    fs::OpenOptions::new().write(true).create_new(true).open(path).map(drop)
}

/// Creates what is missing of a folder, for this user only.
fn create_folder(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

#[cfg(unix)]
fn identity(about: &Metadata) -> Identity {
    use std::os::unix::fs::MetadataExt;
    Identity(about.dev(), about.ino())
}

/// Without a number for a file, the time at which it was created has to do.
#[cfg(not(unix))]
fn identity(about: &Metadata) -> Identity {
    let since = |time: io::Result<std::time::SystemTime>| {
        let time = time.ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
        u64::try_from(time.as_nanos()).ok()
    };
    Identity(since(about.created()).unwrap_or(0), 0)
}

/// Where everybody may write and rename, anybody could put another file in this one's place.
#[cfg(unix)]
fn check_folder(folder: &Path, about: &Metadata) -> Result<()> {
    use std::os::unix::fs::MetadataExt;
    if about.mode() & 0o1002 == 0o002 {
        let message = format!(
            "everybody may replace files in {}: choose a folder that others cannot write to, or set its sticky bit",
            folder.display()
        );
        return Err(Error::new(ErrorKind::Denied, message));
    }
    Ok(())
}

#[cfg(not(unix))]
fn check_folder(_: &Path, _: &Metadata) -> Result<()> {
    Ok(())
}

/// In a folder like `/tmp`, a file that somebody else put there beforehand is a trap.
#[cfg(unix)]
fn check_owner(path: &Path, folder: &Metadata, file: &Metadata) -> Result<()> {
    use std::os::unix::fs::MetadataExt;
    let me = rustix::process::geteuid().as_raw();
    if folder.mode() & 0o002 != 0 && file.uid() != 0 && file.uid() != me {
        let message = format!(
            "the store file {} belongs to another user, in a folder where everybody may put files: choose another folder",
            path.display()
        );
        return Err(Error::new(ErrorKind::Denied, message));
    }
    Ok(())
}

#[cfg(not(unix))]
fn check_owner(_: &Path, _: &Metadata, _: &Metadata) -> Result<()> {
    Ok(())
}

/// File systems of this machine's own, on which locks of one process are seen by all others.
#[cfg(target_os = "linux")]
const LOCAL: [(u64, &str); 15] = [
    (0xEF53, "ext2/3/4"),
    (0x5846_5342, "xfs"),
    (0x9123_683E, "btrfs"),
    (0x0102_1994, "tmpfs"),
    (0x8584_58F6, "ramfs"),
    (0x794C_7630, "overlayfs"),
    (0x2FC1_2FC1, "zfs"),
    (0xF2F5_2010, "f2fs"),
    (0xCA45_1A4E, "bcachefs"),
    (0x3153_464A, "jfs"),
    (0x5265_4973, "reiserfs"),
    (0x3434, "nilfs2"),
    (0x2405_1905, "ubifs"),
    (0x61756673, "aufs"),
    (0xF15F, "ecryptfs"),
];

/// File systems that people do meet, to name them in the error.
#[cfg(target_os = "linux")]
const FOREIGN: [(u64, &str); 9] = [
    (0x6969, "NFS"),
    (0xFF53_4D42, "SMB"),
    (0xFE53_4D42, "SMB"),
    (0x517B, "SMB"),
    (0x6573_5546, "FUSE"),
    (0x0102_1997, "9p"),
    (0x00C3_6400, "Ceph"),
    (0x0BD0_0BD0, "Lustre"),
    (0x0116_1970, "GFS2"),
];

/// Refuses a folder whose file system is not known to be local.
#[cfg(target_os = "linux")]
fn check_file_system(folder: &Path) -> Result<()> {
    let about = rustix::fs::statfs(folder).map_err(|error| {
        Error::new(ErrorKind::Unavailable, format!("cannot tell what file system {} is on", folder.display()))
            .caused_by(io::Error::from(error))
    })?;
    // The type of this field differs between machines; the number has 32 bits.
    #[allow(clippy::cast_sign_loss, clippy::unnecessary_cast, reason = "only the 32 bits count")]
    judge_file_system(about.f_type as u64 & 0xFFFF_FFFF, folder)
}

#[cfg(target_os = "linux")]
fn judge_file_system(number: u64, folder: &Path) -> Result<()> {
    if LOCAL.iter().any(|(local, _)| *local == number) {
        return Ok(());
    }
    let what = match FOREIGN.iter().find(|(foreign, _)| *foreign == number) {
        Some((_, name)) => format!("{name}, where locks between processes cannot be relied on"),
        None => format!("a file system that is not known to be local (type {number:#x})"),
    };
    let message = format!(
        "{} is on {what}: choose a path on a local disk, such as one of ext4, xfs, btrfs, zfs or tmpfs",
        folder.display()
    );
    Err(Error::new(ErrorKind::Unsupported, message))
}

/// Elsewhere there is no list to go by: the documentation asks for a local disk.
#[cfg(not(target_os = "linux"))]
fn check_file_system(_: &Path) -> Result<()> {
    Ok(())
}

/// The boot that the clock belongs to.
#[cfg(target_os = "linux")]
pub(super) fn boot_id() -> Result<String> {
    let path = "/proc/sys/kernel/random/boot_id";
    match fs::read_to_string(path) {
        Ok(id) if !id.trim().is_empty() => Ok(id.trim().to_string()),
        Ok(_) => Err(Error::new(ErrorKind::Unsupported, format!("{path} is empty: cannot tell one boot from another"))),
        Err(error) => {
            let message = format!("cannot read {path}: cannot tell one boot from another");
            Err(Error::new(ErrorKind::Unsupported, message).caused_by(error))
        }
    }
}

/// Elsewhere expiries are kept on the wall clock, which goes on from boot to boot.
#[cfg(not(target_os = "linux"))]
pub(super) fn boot_id() -> Result<String> {
    Ok("wall clock".to_string())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn only_local_file_systems_are_trusted() {
        let folder = Path::new("/somewhere");
        for (number, name) in LOCAL {
            assert!(judge_file_system(number, folder).is_ok(), "{name}");
        }
        for (number, name) in FOREIGN {
            let error = judge_file_system(number, folder).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains(name) && error.to_string().contains("local disk"), "{error}");
        }
        assert!(judge_file_system(0x1234, folder).unwrap_err().to_string().contains("0x1234"));
        // What is not really a disk.
        assert!(check_file_system(Path::new("/proc")).is_err());
    }
}

//! A file that is busy, moved, deleted, replaced, damaged, read-only, full, or somebody else's: one clear error, and never a
//! false grant.

use super::*;
use fencelock::{Effect, Error, ErrorKind};
use rusqlite::Connection;

fn expect(error: &Error, kind: ErrorKind, words: &[&str]) {
    assert_eq!((error.kind(), error.effect()), (kind, Effect::None), "{error}");
    for word in words {
        assert!(error.to_string().contains(word), "{word:?} in {error}");
    }
    assert_eq!(error.to_string().lines().count(), 1, "{error}");
}

#[test]
fn a_busy_file_blocks_nobodys_runtime() {
    block_on(async {
        let (_folder, file) = folder();
        let store = SqliteStore::open(&file).unwrap();
        let (a, b) = (place("a"), place("b"));
        lock(&store, &a).await;
        let busy = Connection::open(&file).unwrap();
        busy.execute_batch("BEGIN IMMEDIATE").unwrap();
        let mut entering = std::pin::pin!(enter(&store, mutex(&b)));
        let start = Instant::now();
        assert!(futures_util::poll!(&mut entering).is_pending());
        assert!(start.elapsed() < Duration::from_millis(100), "the caller's thread was held: {:?}", start.elapsed());
        // Who only reads need not wait.
        assert_eq!(store.inspect(&a.name).await.unwrap().inside.len(), 1);
        assert!(futures_util::poll!(&mut entering).is_pending());
        busy.execute_batch("COMMIT").unwrap();
        assert!(matches!(entering.await, Entered::Admitted { .. }));
        // An act that nobody waits for any more is not done behind their back.
        busy.execute_batch("BEGIN IMMEDIATE").unwrap();
        let c = place("c");
        {
            let mut dropped = std::pin::pin!(enter(&store, mutex(&c)));
            assert!(futures_util::poll!(&mut dropped).is_pending());
        }
        busy.execute_batch("COMMIT").unwrap();
        lock(&store, &place("d")).await;
        assert_eq!(store.inspect(&c.name).await.unwrap().inside, vec![]);
    });
}

#[test]
fn a_file_that_stays_busy_is_an_error() {
    block_on(async {
        let (_folder, file) = folder();
        let store = SqliteStore::open(&file).unwrap();
        let busy = Connection::open(&file).unwrap();
        busy.execute_batch("BEGIN IMMEDIATE").unwrap();
        let error = store.enter(&[mutex(&place("a"))]).await.unwrap_err();
        expect(&error, ErrorKind::Unavailable, &["locked", "locks.db", "5 s"]);
        busy.execute_batch("COMMIT").unwrap();
        lock(&store, &place("a")).await;
    });
}

#[test]
fn a_file_that_was_moved_is_told_and_its_tickets_are_lost() {
    block_on(async {
        let (_folder, file) = folder();
        let store = SqliteStore::open(&file).unwrap();
        let (a, b) = (place("a"), place("b"));
        lock(&store, &a).await;
        let elsewhere = file.with_extension("elsewhere");
        std::fs::rename(&file, &elsewhere).unwrap();
        expect(
            &store.enter(&[mutex(&b)]).await.unwrap_err(),
            ErrorKind::Broken,
            &["moved, deleted or replaced", "locks.db"],
        );
        assert_eq!(store.renew(&[renew(&a)]).await.unwrap(), [Renewed::Gone]);
        // Another one in its place has no such tickets either.
        let other = SqliteStore::open(&file);
        let other = other.unwrap();
        lock(&other, &place("a")).await;
        assert_eq!(store.renew(&[renew(&a)]).await.unwrap(), [Renewed::Gone]);
        assert!(store.enter(&[mutex(&b)]).await.is_err());
        assert!(store.inspect(&b.name).await.is_err());
        leave(&store, &a).await;
        drop(other);
        // Back in its place it is the same as before.
        for ending in ["db", "db-wal", "db-shm"] {
            let _ = std::fs::remove_file(file.with_extension(ending));
        }
        std::fs::rename(&elsewhere, &file).unwrap();
        drop(store);
        let store = SqliteStore::open(&file).unwrap();
        lock(&store, &b).await;
    });
}

#[test]
fn a_deleted_file_is_told() {
    block_on(async {
        let (_folder, file) = folder();
        let store = SqliteStore::open(&file).unwrap();
        let a = place("a");
        lock(&store, &a).await;
        std::fs::remove_file(&file).unwrap();
        expect(&store.enter(&[mutex(&place("b"))]).await.unwrap_err(), ErrorKind::Broken, &["deleted"]);
        assert_eq!(store.renew(&[renew(&a)]).await.unwrap(), [Renewed::Gone]);
        assert!(!file.exists(), "and it is not created anew, since tokens would begin again");
    });
}

#[test]
fn damage_is_told() {
    block_on(async {
        let (_folder, file) = folder();
        std::fs::write(&file, "this is not a database, but it is long enough to be looked at as one".repeat(40))
            .unwrap();
        expect(&SqliteStore::open(&file).unwrap_err(), ErrorKind::Broken, &["not a fencelock store file", "locks.db"]);
        std::fs::remove_file(&file).unwrap();
        // Damaged under our feet: everything behind the first page, in a copy that nobody has open.
        let store = SqliteStore::open(&file).unwrap();
        for n in 0..200 {
            lock(&store, &place(&format!("line-{n}"))).await;
        }
        drop(store);
        let conn = Connection::open(&file).unwrap();
        conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
        conn.close().unwrap();
        let mut bytes = std::fs::read(&file).unwrap();
        let length = bytes.len();
        bytes[2048..length].iter_mut().for_each(|byte| *byte = 0xA5);
        std::fs::write(&file, bytes).unwrap();
        let told = match SqliteStore::open(&file) {
            Err(error) => error,
            Ok(store) => store.enter(&[mutex(&place("line-100"))]).await.unwrap_err(),
        };
        expect(&told, ErrorKind::Broken, &["damaged"]);
    });
}

#[test]
fn other_layouts_and_other_databases_are_refused() {
    let (_folder, file) = folder();
    drop(SqliteStore::open(&file).unwrap());
    let conn = Connection::open(&file).unwrap();
    conn.pragma_update(None, "user_version", 7).unwrap();
    expect(&SqliteStore::open(&file).unwrap_err(), ErrorKind::Broken, &["layout 7", "layout 1"]);
    let other = file.with_extension("other");
    let conn = Connection::open(&other).unwrap();
    conn.execute_batch("CREATE TABLE customer (id INTEGER)").unwrap();
    expect(&SqliteStore::open(&other).unwrap_err(), ErrorKind::Broken, &["somebody else's database"]);
    assert_eq!(conn.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get::<_, i64>(0)).unwrap(), 1);
}

#[test]
fn traps_are_refused() {
    use std::os::unix::fs::PermissionsExt;
    let (folder, file) = folder();
    drop(SqliteStore::open(&file).unwrap());
    let link = folder.path().join("link.db");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    expect(&SqliteStore::open(&link).unwrap_err(), ErrorKind::Denied, &["symbolic link"]);
    expect(&SqliteStore::open(folder.path().join("..")).unwrap_err(), ErrorKind::InvalidInput, &["names no file"]);
    let inner = folder.path().join("inner");
    std::fs::create_dir(&inner).unwrap();
    expect(&SqliteStore::open(&inner).unwrap_err(), ErrorKind::InvalidInput, &["not a file"]);
    std::fs::set_permissions(&inner, std::fs::Permissions::from_mode(0o777)).unwrap();
    expect(&SqliteStore::open(inner.join("x.db")).unwrap_err(), ErrorKind::Denied, &["everybody", "sticky"]);
    assert_eq!(std::fs::read_dir(&inner).unwrap().count(), 0, "nothing was created");
    std::fs::set_permissions(&inner, std::fs::Permissions::from_mode(0o1777)).unwrap();
    drop(SqliteStore::open(inner.join("x.db")).unwrap());
    expect(&SqliteStore::open("/proc/x.db").unwrap_err(), ErrorKind::Unsupported, &["local disk"]);
}

/// A small file system of its own, where the test may mount one.
struct Small(tempfile::TempDir);

impl Small {
    fn mount() -> Option<Small> {
        let small = Small(tempfile::tempdir().unwrap());
        small.run("mount", &["-t", "tmpfs", "-o", "size=192k", "tmpfs"]).then_some(small)
    }

    fn run(&self, program: &str, arguments: &[&str]) -> bool {
        let done = Command::new(program).args(arguments).arg(self.0.path()).stderr(Stdio::null()).status();
        done.is_ok_and(|status| status.success())
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        self.run("umount", &["-l"]);
    }
}

/// Enters one line after the other until the file takes no more. Says how many, and why no more.
pub(super) async fn fill(store: &SqliteStore) -> (Vec<Place>, Error) {
    let mut inside = Vec::new();
    loop {
        let place = place(&format!("line-{}", inside.len()));
        match store.enter(&[mutex(&place)]).await {
            Ok(_) => inside.push(place),
            Err(error) => return (inside, error),
        }
        assert!(inside.len() < 10_000);
    }
}

#[test]
fn a_full_disk_is_told_and_what_was_there_stays() {
    block_on(async {
        // Without the right to mount, the next test has to do.
        let Some(small) = Small::mount() else { return };
        let store = SqliteStore::open(small.0.path().join("locks.db")).unwrap();
        let (inside, error) = fill(&store).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("full"), "{error}");
        assert!(!inside.is_empty());
        let refused = place(&format!("line-{}", inside.len()));
        assert_eq!(store.inspect(&refused.name).await.unwrap().inside, vec![], "no grant");
        for place in &inside {
            assert_eq!(store.inspect(&place.name).await.unwrap().inside.len(), 1, "what was granted is there");
        }
    });
}

#[test]
fn a_file_that_may_not_grow_is_told_and_what_was_there_stays() {
    block_on(async {
        let (_folder, file) = folder();
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' XFSZ; ulimit -f 400; exec \"$0\" \"$@\""]).arg(std::env::current_exe().unwrap());
        let mut process = Process::start_by(command, "fill", &file, "");
        let inside: usize = process.says().parse().unwrap();
        assert!(inside > 0);
        let told = process.says();
        assert!(told.starts_with("Unavailable") && told.contains("cannot be read or written"), "{told}");
        let store = SqliteStore::open(&file).unwrap();
        assert_eq!(store.list("", None, 10_000).await.unwrap().len(), inside, "no more and no less");
        process.ends();
    });
}

#[test]
fn a_read_only_file_is_told() {
    block_on(async {
        use std::os::unix::fs::PermissionsExt;
        if let Some(small) = Small::mount() {
            let file = small.0.path().join("locks.db");
            drop(SqliteStore::open(&file).unwrap());
            assert!(small.run("mount", &["-o", "remount,ro"]));
            let error = match SqliteStore::open(&file) {
                Err(error) => error,
                Ok(store) => store.enter(&[mutex(&place("a"))]).await.unwrap_err(),
            };
            expect(&error, ErrorKind::Denied, &["locks.db"]);
            let error = SqliteStore::open(small.0.path().join("new.db")).unwrap_err();
            expect(&error, ErrorKind::Denied, &["cannot create", "new.db"]);
            assert!(small.run("mount", &["-o", "remount,rw"]));
        } else {
            let (_folder, file) = folder();
            drop(SqliteStore::open(&file).unwrap());
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o400)).unwrap();
            let error = match SqliteStore::open(&file) {
                Err(error) => error,
                Ok(store) => store.enter(&[mutex(&place("a"))]).await.unwrap_err(),
            };
            expect(&error, ErrorKind::Denied, &["locks.db"]);
        }
    });
}

//! A file system of its own, which can be filled up.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A small file system, until it is dropped.
pub(crate) struct Small(tempfile::TempDir);

impl Small {
    /// Where the test may mount one; else the test is not run, and says so.
    pub(crate) fn mount(size: &str) -> Option<Small> {
        let small = Small(tempfile::tempdir().expect("a folder"));
        let mounted = small.run("mount", &["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]);
        if !mounted {
            eprintln!("not run: nothing may be mounted here");
        }
        mounted.then_some(small)
    }

    /// A folder in it.
    pub(crate) fn folder(&self) -> tempfile::TempDir {
        tempfile::tempdir_in(self.0.path()).expect("a folder")
    }

    fn ballast(&self) -> PathBuf {
        self.0.path().join("ballast")
    }

    /// Leaves no room at all.
    pub(crate) fn fill(&self) {
        let mut file = std::fs::File::create(self.ballast()).expect("a file");
        for size in [1 << 20, 4096, 1] {
            while file.write_all(&vec![0; size]).is_ok() {}
        }
    }

    /// Gives it back.
    pub(crate) fn empty(&self) {
        std::fs::remove_file(self.ballast()).expect("the ballast");
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

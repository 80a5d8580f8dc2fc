//! Finds out how each measured lock is started: our own ones by this program, the peers by programs that are built first, where their
//! toolchain is at hand and the libraries can be had.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Who speaks the words for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Program {
    Ours,
    Go,
    Java,
    Rust,
    Python,
    Node,
    /// A program that holds a lock while it runs another one; it speaks no words.
    Command,
}

fn program_of(lock: &str) -> Program {
    match lock {
        "redsync" | "redsync-fast" | "redislock" | "redislock-fast" | "etcd-mutex" | "consul-lock" => Program::Go,
        "redisson-lock" | "redisson-fair" | "redisson-fenced" | "curator-mutex" | "spring-registry" => Program::Java,
        "rslock" | "rslock-fast" => Program::Rust,
        "kazoo-lock" | "redis-py" | "redis-py-fast" => Program::Python,
        "node-redlock" | "node-redlock-fast" => Program::Node,
        "fencelock-run" | "flock" | "etcdctl-lock" | "consul-lock-program" => Program::Command,
        _ => Program::Ours,
    }
}

/// Whether it is one of ours or a floor of ours.
pub(crate) fn is_ours(lock: &str) -> bool {
    program_of(lock) == Program::Ours
}

/// Whether our own program speaks the words for it.
pub(crate) fn speaks(lock: &str) -> bool {
    is_ours(lock) && lock != "wire-redis"
}

/// A Java program needs longer until its compiler has seen the loop.
pub(crate) fn warm_secs(lock: &str) -> f64 {
    if program_of(lock) == Program::Java { 6.0 } else { 0.7 }
}

/// The programs that were built, or why not.
pub(crate) struct Peers {
    source: PathBuf,
    built: PathBuf,
    ready: HashMap<Program, Result<Vec<String>, String>>,
}

impl Peers {
    pub(crate) fn new() -> Peers {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        Peers { source: here.join("peers"), built: here.join("../target/peers"), ready: HashMap::new() }
    }

    /// The command up to the words, or why there is none.
    pub(crate) fn command(&mut self, lock: &str) -> Result<Command, String> {
        let program = program_of(lock);
        if program == Program::Command {
            return holder(lock);
        }
        if !self.ready.contains_key(&program) {
            let built = self.build(program);
            self.ready.insert(program, built);
        }
        let words = self.ready[&program].clone()?;
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        Ok(command)
    }

    fn build(&self, program: Program) -> Result<Vec<String>, String> {
        let text = |path: PathBuf| path.display().to_string();
        let _ = std::fs::create_dir_all(&self.built);
        match program {
            Program::Ours => {
                let me = std::env::current_exe().map_err(|error| error.to_string())?;
                Ok(vec![text(me), "worker".into()])
            }
            Program::Go => {
                let out = text(self.built.join("go-peer"));
                quietly("go", &["build", "-mod=mod", "-o", &out, "."], &self.source.join("go"))?;
                Ok(vec![out])
            }
            Program::Java => {
                let (jars, classes) = (self.built.join("java/jars"), text(self.built.join("java/classes")));
                let source = self.source.join("java");
                if !jars.is_dir() {
                    let out = format!("-DoutputDirectory={}", jars.display());
                    quietly("mvn", &["-q", "-B", "dependency:copy-dependencies", &out], &source)?;
                }
                let path = format!("{}/*", jars.display());
                quietly("javac", &["-cp", &path, "-d", &classes, "Peer.java", "Clients.java"], &source)?;
                Ok(vec!["java".into(), "-cp".into(), format!("{path}:{classes}"), "Peer".into()])
            }
            Program::Rust => {
                let target = text(self.built.join("rust"));
                quietly(
                    "cargo",
                    &["build", "--release", "--locked", "--target-dir", &target],
                    &self.source.join("rust"),
                )?;
                Ok(vec![format!("{target}/release/fencelock-bench-peers")])
            }
            Program::Python => {
                let folder = self.built.join("python");
                let wanted = text(self.source.join("python/requirements.txt"));
                if !folder.is_dir() {
                    let out = text(folder.clone());
                    quietly("python3", &["-m", "pip", "install", "-q", "--target", &out, "-r", &wanted], &self.source)?;
                }
                let program = text(self.source.join("python/peer.py"));
                Ok(vec!["env".into(), format!("PYTHONPATH={}", folder.display()), "python3".into(), program])
            }
            Program::Command => Err("it speaks no words".into()),
            Program::Node => {
                let folder = self.built.join("node");
                std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
                for file in ["package.json", "package-lock.json", "peer.mjs"] {
                    std::fs::copy(self.source.join("node").join(file), folder.join(file))
                        .map_err(|error| error.to_string())?;
                }
                if !folder.join("node_modules").is_dir() {
                    quietly("npm", &["ci", "--silent"], &folder)?;
                }
                Ok(vec!["node".into(), text(folder.join("peer.mjs"))])
            }
        }
    }
}

/// A program that is on the machine; ours lies beside this one.
fn holder(lock: &str) -> Result<Command, String> {
    let name = match lock {
        "fencelock-run" => {
            let ours = std::env::current_exe().map_err(|error| error.to_string())?.with_file_name("fencelock");
            let missing = || "fencelock is not built: cargo build --release".to_string();
            return ours.exists().then(|| Command::new(&ours)).ok_or_else(missing);
        }
        "consul-lock-program" => {
            return super::consul::program().map(Command::new).ok_or_else(|| "there is no consul".into());
        }
        "etcdctl-lock" => "etcdctl",
        other => other,
    };
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file());
    found.map(Command::new).ok_or_else(|| format!("there is no {name}"))
}

fn quietly(program: &str, args: &[&str], folder: &Path) -> Result<(), String> {
    let mut command = Command::new(program);
    command.args(args).current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null());
    let output = command.output().map_err(|_| format!("there is no {program}"))?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    eprintln!("{words}");
    Err(format!("{program} {} failed", args[0]))
}

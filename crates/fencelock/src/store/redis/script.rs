//! The scripts: one for each verb, in files of their own, and how a call of one is put together.

use crate::name::Name;
use redis::Cmd;
use std::sync::LazyLock;

/// Stands in each script where what all of them share is put.
const MARK: &str = "--<line>";
const LINE: &str = include_str!("line.lua");

/// Set while somebody watches: every change is published then.
pub(super) const WATCH_KEY: &str = "fencelock:watch";
/// The channel for changes of all lines.
pub(super) const ALL_CHANGES: &str = "fencelock:changes";

/// A script and its hash.
pub(super) struct Script {
    pub(super) source: String,
    pub(super) hash: String,
}

impl Script {
    fn new(verb: &str) -> Script {
        let source = verb.replacen(MARK, LINE, 1);
        let hash = redis::Script::new(&source).get_hash().to_string();
        Script { source, hash }
    }
}

macro_rules! scripts {
    ($($name:ident = $file:literal;)*) => {
        $(pub(super) static $name: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!($file)));)*
    };
}

scripts! {
    ENTER = "enter.lua";
    LEAVE = "leave.lua";
    RENEW = "renew.lua";
    CHANGE = "change.lua";
    UPGRADE = "upgrade.lua";
    EXPEL = "expel.lua";
    INSPECT = "inspect.lua";
}

/// The first key of a line; the others begin with it.
pub(super) fn line_key(key: &str) -> String {
    format!("fencelock:{{{key}}}")
}

/// The channel on which changes of a line are told while somebody watches it.
pub(super) fn changes(key: &str) -> String {
    format!("fencelock:{{{key}}}:changes")
}

/// The name's key in a line's key or channel.
pub(super) fn name_in(key: &str) -> Option<&str> {
    key.strip_prefix("fencelock:{")?.split_once('}').map(|(name, _)| name)
}

/// One call of a script.
pub(super) struct Call {
    script: &'static Script,
    keys: Vec<String>,
    args: Vec<String>,
}

impl Call {
    pub(super) fn new(script: &'static Script, lines: usize, args: usize) -> Call {
        Call { script, keys: Vec::with_capacity(lines * 4 + 1), args: Vec::with_capacity(args) }
    }

    /// The four keys of a line.
    pub(super) fn line(&mut self, name: &Name) {
        let key = name.key();
        self.keys.extend(["", ":t", ":q", ":x"].map(|which| format!("fencelock:{{{key}}}{which}")));
    }

    pub(super) fn arg(&mut self, arg: impl Into<String>) {
        self.args.push(arg.into());
    }

    fn command(&self, verb: &str, script: &str) -> Cmd {
        let mut cmd = redis::cmd(verb);
        cmd.arg(script).arg(self.keys.len() + 1);
        for key in &self.keys {
            cmd.arg(key);
        }
        cmd.arg(WATCH_KEY);
        for arg in &self.args {
            cmd.arg(arg);
        }
        cmd
    }

    /// By its hash: what is sent as a rule.
    pub(super) fn by_hash(&self) -> Cmd {
        self.command("EVALSHA", &self.script.hash)
    }

    /// In full: for a server that does not know it yet.
    pub(super) fn in_full(&self) -> Cmd {
        self.command("EVAL", &self.script.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_takes_in_what_all_share() {
        for script in [&ENTER, &LEAVE, &RENEW, &CHANGE, &UPGRADE, &EXPEL, &INSPECT] {
            assert!(script.source.contains("local function settle"), "{}", script.source);
            assert!(!script.source.contains(MARK));
        }
    }

    #[test]
    fn a_name_can_be_read_from_its_keys() {
        assert_eq!(name_in(&line_key("shop/stock")), Some("shop/stock"));
        assert_eq!(name_in(&changes("a")), Some("a"));
        assert_eq!(name_in("other"), None);
    }
}

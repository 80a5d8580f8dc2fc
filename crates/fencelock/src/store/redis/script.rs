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

/// How a script sends its messages and finds its keys: its first line (see `line.lua`). On one server each line is named by
/// its first key alone: every key more costs the server a quarter of a microsecond.
const PLAIN: &str = "local PUBLISH, EVERYWHERE, EACH, WATCH = 'PUBLISH', 'fencelock:changes', 1, 'fencelock:watch'\n";
/// In a cluster: to the node that has the line's slot, and to nobody else. So there is no channel for all lines.
/// All keys are named there: a slot that is moving answers before a script has begun, never half-way.
const SHARDED: &str = "local PUBLISH, EVERYWHERE, EACH, WATCH = 'SPUBLISH', nil, 4, KEYS[#KEYS]\n";

/// A script, as it is for one server and as it is for a cluster.
pub(super) struct Script {
    plain: Text,
    sharded: Text,
}

/// A script's text and its hash.
struct Text {
    source: String,
    hash: String,
}

impl Script {
    fn new(verb: &str) -> Script {
        let text = |first: &str| {
            let source = format!("{first}{}", verb.replacen(MARK, LINE, 1));
            let hash = redis::Script::new(&source).get_hash().to_string();
            Text { source, hash }
        };
        Script { plain: text(PLAIN), sharded: text(SHARDED) }
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
    LIMIT = "limit.lua";
    LOAD = "load.lua";
    STORE_IF = "store_if.lua";
}

/// The first key of a line; the others begin with it.
pub(super) fn line_key(key: &str) -> String {
    format!("fencelock:{{{key}}}")
}

/// The channel on which changes of a line are told while somebody watches it.
pub(super) fn changes(key: &str) -> String {
    format!("fencelock:{{{key}}}:changes")
}

/// Set in a cluster while somebody watches this line: it has to be where the line is.
pub(super) fn watch_key(key: &str) -> String {
    format!("fencelock:{{{key}}}:watch")
}

/// The channel of a line in a cluster on which this client is told; `client` is the one on which it is told of everything
/// else. What is put before the last part is taken away again by `expel.lua`.
pub(super) fn inbox(key: &str, client: &str) -> String {
    format!("fencelock:{{{key}}}{}", inbox_end(client))
}

/// How the names of all channels end on which this client is told of tickets.
pub(super) fn inbox_end(client: &str) -> &str {
    client.strip_prefix("fencelock").unwrap_or(client)
}

/// The name's key in a line's key or channel.
pub(super) fn name_in(key: &str) -> Option<&str> {
    key.strip_prefix("fencelock:{")?.split_once('}').map(|(name, _)| name)
}

/// One call of a script.
pub(super) struct Call {
    script: &'static Script,
    /// The first key of each ticket's line.
    keys: Vec<String>,
    args: Vec<Vec<u8>>,
    /// For a cluster: all of its lines are one, and the key that marks a watched line is where the line is.
    sharded: bool,
    /// Whether it is about a key that belongs to no line.
    beside: bool,
}

impl Call {
    pub(super) fn new(script: &'static Script, lines: usize, args: usize) -> Call {
        Call { script, keys: Vec::with_capacity(lines), args: Vec::with_capacity(args), sharded: false, beside: false }
    }

    /// A call about one key that belongs to no line.
    pub(super) fn beside(script: &'static Script, key: String) -> Call {
        Call { script, keys: vec![key], args: Vec::new(), sharded: false, beside: true }
    }

    /// One more ticket, of this line.
    pub(super) fn line(&mut self, name: &Name) {
        self.keys.push(line_key(name.key()));
    }

    pub(super) fn arg(&mut self, arg: impl Into<Vec<u8>>) {
        self.args.push(arg.into());
    }

    /// The same for a cluster. All of its lines have to be one.
    pub(super) fn sharded(mut self) -> Call {
        debug_assert!(self.keys.iter().all(|line| *line == self.keys[0]), "lines of one slot: {:?}", self.keys);
        self.sharded = true;
        self
    }

    /// The key that says where in a cluster it belongs.
    pub(super) fn key(&self) -> &str {
        self.keys.first().map_or("", String::as_str)
    }

    fn text(&self) -> &Text {
        if self.sharded { &self.script.sharded } else { &self.script.plain }
    }

    fn command(&self, verb: &str, script: &str) -> Cmd {
        let size = self.keys.iter().map(String::len).sum::<usize>() + self.args.iter().map(Vec::len).sum::<usize>();
        let mut cmd = Cmd::with_capacity(self.keys.len() * 4 + self.args.len() + 4, size + script.len() + 64);
        cmd.arg(verb).arg(script);
        if self.sharded && !self.beside {
            cmd.arg(self.keys.len() * 4 + 1);
            for key in &self.keys {
                cmd.arg(key);
                for which in [":t", ":q", ":x"] {
                    cmd.arg(format!("{key}{which}"));
                }
            }
            cmd.arg(watch_key(name_in(&self.keys[0]).unwrap_or_default()));
        } else {
            cmd.arg(self.keys.len());
            for key in &self.keys {
                cmd.arg(key);
            }
        }
        for arg in &self.args {
            cmd.arg(arg);
        }
        cmd
    }

    /// By its hash: what is sent as a rule.
    pub(super) fn by_hash(&self) -> Cmd {
        self.command("EVALSHA", &self.text().hash)
    }

    /// In full: for a server that does not know it yet.
    pub(super) fn in_full(&self) -> Cmd {
        self.command("EVAL", &self.text().source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_takes_in_what_all_share() {
        for script in [&ENTER, &LEAVE, &RENEW, &CHANGE, &UPGRADE, &EXPEL, &INSPECT] {
            for text in [&script.plain, &script.sharded] {
                assert!(text.source.contains("local function settle"), "{}", text.source);
                assert!(!text.source.contains(MARK));
            }
            assert_ne!(script.plain.hash, script.sharded.hash);
        }
    }

    #[test]
    fn a_name_can_be_read_from_its_keys() {
        assert_eq!(name_in(&line_key("shop/stock")), Some("shop/stock"));
        assert_eq!(name_in(&changes("a")), Some("a"));
        assert_eq!(name_in("other"), None);
        assert_eq!(inbox("a", "fencelock:inbox:7"), "fencelock:{a}:inbox:7");
    }
}

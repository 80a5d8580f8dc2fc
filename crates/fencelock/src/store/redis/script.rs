//! The scripts: one for each verb, in files of their own, and how a call of one is put together.

use crate::name::Name;
use crate::store::TicketId;
use redis::{Arg, Cmd, RedisWrite, ToRedisArgs};
use std::io::Write as _;
use std::str::from_utf8;
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

/// What stands around a name's key in the first key of its line; the others begin with that.
const LINE_KEY: [&str; 2] = ["fencelock:{", "}"];

/// The first key of a line.
pub(super) fn line_key(key: &str) -> String {
    [LINE_KEY[0], key, LINE_KEY[1]].concat()
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

/// One call of a script, put together as it is sent: it is made for every lock and every release.
pub(super) struct Call {
    script: &'static Script,
    cmd: Cmd,
    /// How many lines it is about.
    lines: usize,
    /// Whether it is about a key that belongs to no line.
    beside: bool,
}

/// What stands before the first key: the command, the script's hash, and how many keys there are.
const HEAD: usize = 3;

impl Call {
    /// A call about so many lines, with so many other words. The lines come first.
    pub(super) fn new(script: &'static Script, lines: usize, args: usize) -> Call {
        let mut cmd = Cmd::with_capacity(HEAD + lines + args, 64 + lines * 64 + args * 128);
        cmd.arg("EVALSHA").arg(&script.plain.hash).arg(lines);
        Call { script, cmd, lines, beside: false }
    }

    /// A call about one key that belongs to no line.
    pub(super) fn beside(script: &'static Script, key: String) -> Call {
        let mut call = Call::new(script, 1, 8);
        call.cmd.arg(key);
        Call { beside: true, ..call }
    }

    /// One more line.
    pub(super) fn line(&mut self, name: &Name) {
        debug_assert!(self.cmd.args_iter().len() < HEAD + self.lines, "the lines come first");
        let mut word = self.cmd.writer_for_next_arg();
        for part in [LINE_KEY[0], name.key(), LINE_KEY[1]] {
            // Into memory: it does not fail.
            let _ = word.write_all(part.as_bytes());
        }
    }

    pub(super) fn arg(&mut self, arg: impl ToRedisArgs) {
        debug_assert!(self.cmd.args_iter().len() >= HEAD + self.lines, "the lines come first");
        self.cmd.arg(arg);
    }

    pub(super) fn id(&mut self, id: TicketId) {
        self.arg(&id.digits()[..]);
    }

    fn words(&self) -> impl Iterator<Item = &[u8]> {
        self.cmd.args_iter().map(|word| match word {
            Arg::Simple(word) => word,
            _ => Default::default(),
        })
    }

    /// The same for a cluster, where all keys are named, also the one that says that somebody watches. All of its lines have to
    /// be one.
    pub(super) fn sharded(self) -> Call {
        if self.beside {
            return self.of("EVALSHA", &self.script.sharded.hash);
        }
        let keys: Vec<&str> = self.words().skip(HEAD).take(self.lines).filter_map(|key| from_utf8(key).ok()).collect();
        debug_assert!(keys.iter().all(|line| *line == keys[0]), "lines of one slot: {keys:?}");
        let mut cmd = Cmd::new();
        cmd.arg("EVALSHA").arg(&self.script.sharded.hash).arg(keys.len() * 4 + 1);
        for key in &keys {
            cmd.arg(key);
            for which in [":t", ":q", ":x"] {
                cmd.arg(format!("{key}{which}"));
            }
        }
        cmd.arg(watch_key(keys.first().and_then(|key| name_in(key)).unwrap_or_default()));
        for word in self.words().skip(HEAD + self.lines) {
            cmd.arg(word);
        }
        Call { cmd, lines: self.lines * 4 + 1, ..self }
    }

    /// The same words, with another command.
    fn of(&self, verb: &str, script: &str) -> Call {
        let mut cmd = Cmd::new();
        cmd.arg(verb).arg(script);
        for word in self.words().skip(2) {
            cmd.arg(word);
        }
        Call { cmd, ..*self }
    }

    /// The key that says where in a cluster it belongs.
    pub(super) fn key(&self) -> &str {
        self.words().nth(HEAD).and_then(|key| from_utf8(key).ok()).unwrap_or_default()
    }

    /// By its hash: what is sent as a rule.
    pub(super) fn by_hash(&self) -> &Cmd {
        &self.cmd
    }

    /// In full: for a server that does not know it yet.
    pub(super) fn in_full(&self) -> Cmd {
        let hash = self.words().nth(1).unwrap_or_default();
        let texts = [&self.script.plain, &self.script.sharded];
        let text = texts.into_iter().find(|text| text.hash.as_bytes() == hash);
        self.of("EVAL", text.map_or("", |text| &text.source)).cmd
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

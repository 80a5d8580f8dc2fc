//! Which store: `--store`, `FENCELOCK_STORE`, or the embedded default; and how to keep passwords out of sight.

use crate::args::Global;
use crate::failure::Failure;
use fencelock::Locks;
use fencelock::name::printable;
use sha2::{Digest, Sha256};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// A store that was chosen but not yet opened: nothing has been created.
#[derive(Debug)]
pub(crate) struct Choice {
    pub(crate) url: String,
    /// The folder to be made on first use, for the embedded default.
    folder: Option<PathBuf>,
    /// Always said to the library, so that we know which it is.
    pub(crate) namespace: String,
}

/// Chooses by flag, then environment, then default. Creates nothing.
pub(crate) fn choose(global: &Global) -> Result<Choice, Failure> {
    let from_env = std::env::var_os("FENCELOCK_STORE").filter(|url| !url.is_empty());
    let flagged = global.store.clone().or(from_env);
    let mut choice = match flagged {
        Some(url) => Choice { url: utf8(url)?, folder: None, namespace: String::new() },
        None => embedded(std::env::var_os("XDG_STATE_HOME").as_deref(), std::env::var_os("HOME").as_deref())?,
    };
    choice.namespace = match &global.namespace {
        Some(namespace) => namespace.clone(),
        None => namespace_of(&choice.url),
    };
    Ok(choice)
}

fn utf8(url: OsString) -> Result<String, Failure> {
    url.into_string().map_err(|_| Failure::usage("the store's URL is not UTF-8"))
}

fn embedded(state: Option<&OsStr>, home: Option<&OsStr>) -> Result<Choice, Failure> {
    let absolute = |path: &OsStr| Some(PathBuf::from(path)).filter(|path| path.is_absolute());
    let folder = state.and_then(absolute).or_else(|| Some(absolute(home?)?.join(".local/state")));
    let Some(folder) = folder else {
        return Err(Failure::usage(
            "no home folder to keep the locks in: set HOME, or name a store with --store or FENCELOCK_STORE",
        ));
    };
    let folder = folder.join("fencelock");
    let path = folder.join("locks.db");
    match path.to_str() {
        Some(path) if !path.contains('?') => {
            Ok(Choice { url: format!("sqlite:{path}"), folder: Some(folder), namespace: String::new() })
        }
        _ => Err(Failure::usage("the home folder's path cannot be written in a URL: name a store with --store")),
    }
}

/// What the URL's query says of the namespace. Everything else in it is the library's to judge.
fn namespace_of(url: &str) -> String {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    let mut values = query.split('&').filter_map(|option| option.strip_prefix("namespace="));
    values
        .next_back()
        .map_or_else(String::new, |value| percent_encoding::percent_decode_str(value).decode_utf8_lossy().into_owned())
}

impl Choice {
    /// Opens it, and creates what has to be created.
    pub(crate) async fn open(&self) -> Result<Locks, Failure> {
        if let Some(folder) = &self.folder {
            make_private(folder).map_err(|error| {
                let shown = printable(&folder.to_string_lossy());
                Failure::store(format!("the folder {shown} cannot be made: {error}; name another store with --store"))
            })?;
        }
        let builder = Locks::builder(&self.url).namespace(&self.namespace);
        builder.connect().await.map_err(Failure::connecting)
    }

    /// Checks a name before anything is opened.
    pub(crate) fn check_name(&self, name: &str) -> Result<(), Failure> {
        fencelock::name::Name::new(&self.namespace, name).map(drop).map_err(Failure::from)
    }

    /// The name as the store spells it, with the namespace: never has a space in it.
    pub(crate) fn spelled(&self, name: &str) -> Result<String, Failure> {
        Ok(fencelock::name::Name::new(&self.namespace, name)?.key().to_string())
    }

    /// A shown name without our namespace: what can be typed back.
    pub(crate) fn typed(&self, shown: &str) -> String {
        let rest = shown.strip_prefix(&self.namespace).and_then(|rest| rest.strip_prefix('/'));
        match rest {
            Some(rest) if !self.namespace.is_empty() => rest.to_string(),
            _ => shown.to_string(),
        }
    }

    /// A fingerprint of store and namespace without credentials.
    pub(crate) fn fingerprint(&self, locks: &Locks) -> String {
        let info = locks.info();
        let mut hash = Sha256::new();
        for part in [info.kind, &info.address, &self.namespace] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part.as_bytes());
        }
        hash.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Makes a folder, and whatever is missing above it, for this user only.
fn make_private(folder: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    // One call where it is there already, as it nearly always is.
    if folder.is_dir() {
        return Ok(());
    }
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// The same text with everything between the first `://` and the last `@` taken out, and nothing that a terminal could be
/// fooled with: for text that may hold what somebody typed in the wrong place.
pub(crate) fn redact(text: &str) -> String {
    let cut = text.split_once("://").and_then(|(scheme, rest)| Some((scheme, rest.rsplit_once('@')?.1)));
    match cut {
        Some((scheme, host)) => printable(&format!("{scheme}://...@{host}")),
        None => printable(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_embedded_default_is_in_the_state_folder() {
        let url = |state: Option<&str>, home: Option<&str>| {
            embedded(state.map(OsStr::new), home.map(OsStr::new)).map(|choice| choice.url).map_err(|f| f.code)
        };
        assert_eq!(url(Some("/s"), Some("/h")).unwrap(), "sqlite:/s/fencelock/locks.db");
        assert_eq!(url(None, Some("/h")).unwrap(), "sqlite:/h/.local/state/fencelock/locks.db");
        assert_eq!(url(Some("relative"), Some("/h")).unwrap(), "sqlite:/h/.local/state/fencelock/locks.db");
        assert_eq!(url(None, None).unwrap_err(), 64);
        assert_eq!(url(None, Some("")).unwrap_err(), 64);
        assert_eq!(url(Some("/what?"), None).unwrap_err(), 64);
    }

    #[test]
    fn the_namespace_of_a_url_is_found() {
        assert_eq!(namespace_of("memory:"), "");
        assert_eq!(namespace_of("memory:?label=x&namespace=shop%2Feu"), "shop/eu");
        assert_eq!(namespace_of("memory:?namespace=a&namespace=b"), "b");
    }

    #[test]
    fn passwords_are_taken_out() {
        for (text, shown) in [
            ("redis://u:secret@h:1/0", "redis://...@h:1/0"),
            ("unexpected 'redis://:p@ss/w@h' found", "unexpected 'redis://...@h' found"),
            ("quorum:redis://u:a@x|redis://u:b@y", "quorum:redis://...@y"),
            ("redis://h:1", "redis://h:1"),
            ("a\u{1b}[31m", "a\\u{1b}[31m"),
        ] {
            assert_eq!(redact(text), shown);
        }
    }

    proptest! {
        #[test]
        fn a_password_never_survives(user in "[a-z]{0,4}", password in "[a-z@/:? ]{0,8}SECRET[a-z@/:? ]{0,8}", rest in "[a-z:0-9/]{0,12}") {
            let url = format!("'redis://{user}:{password}@{rest}'");
            prop_assert!(!redact(&url).contains("SECRET"));
        }

        #[test]
        fn nothing_makes_it_panic(text in any::<String>()) {
            let _ = redact(&text);
            let _ = namespace_of(&text);
        }
    }
}

//! Store URLs: what `Locks::connect` and the program's `--store` take. Passwords never come back out of here in a message.

use crate::beside::Beside;
use crate::error::{Error, ErrorKind, Result};
use crate::name::printable;
use crate::store::Store;
use std::collections::BTreeMap;
use std::sync::Arc;

/// One kind of store: how its URL begins, what it is, and the feature that brings it.
#[derive(Clone, Copy, Debug)]
pub struct Scheme {
    /// What stands before the colon.
    pub scheme: &'static str,
    /// The whole form.
    pub form: &'static str,
    /// What it is good for.
    pub about: &'static str,
    /// The feature of this crate that brings it.
    pub feature: &'static str,
    /// Whether this build has it.
    pub built_in: bool,
    /// Its own options, besides [`COMMON_OPTIONS`].
    pub options: &'static [&'static str],
}

/// Options that every URL takes in its query.
pub const COMMON_OPTIONS: &[&str] = &["namespace", "label"];

/// Every store URL that this version knows.
pub const SCHEMES: &[Scheme] = &[
    Scheme {
        scheme: "memory",
        form: "memory:[NAME]",
        about: "the tasks and threads of this process",
        feature: "memory",
        built_in: cfg!(feature = "memory"),
        options: &[],
    },
    Scheme {
        scheme: "sqlite",
        form: "sqlite:PATH",
        about: "the processes of one host, in a file",
        feature: "sqlite",
        built_in: cfg!(feature = "sqlite"),
        options: &[],
    },
    Scheme {
        scheme: "redis",
        form: "redis://[USER:PASSWORD@]HOST[:PORT][/DB]",
        about: "everybody who reaches a Redis server",
        feature: "redis",
        built_in: cfg!(feature = "redis"),
        options: &["evictable", "replicas", "spin"],
    },
    Scheme {
        scheme: "rediss",
        form: "rediss://[USER:PASSWORD@]HOST[:PORT][/DB]",
        about: "the same over TLS",
        feature: "redis",
        built_in: cfg!(feature = "redis"),
        options: &["evictable", "replicas", "ca", "cert", "key"],
    },
    Scheme {
        scheme: "redis+unix",
        form: "redis+unix:///PATH",
        about: "a Redis server behind a socket file",
        feature: "redis",
        built_in: cfg!(feature = "redis"),
        options: &["evictable", "replicas", "spin", "db", "user", "password"],
    },
    Scheme {
        scheme: "redis+sentinel",
        form: "redis+sentinel://[USER:PASSWORD@]HOST:PORT[,HOST:PORT...]/MASTER",
        about: "the Redis master that the sentinels name",
        feature: "redis",
        built_in: cfg!(feature = "redis"),
        options: &["evictable", "replicas", "db", "sentinel_user", "sentinel_password"],
    },
    Scheme {
        scheme: "rediss+sentinel",
        form: "rediss+sentinel://[USER:PASSWORD@]HOST:PORT[,HOST:PORT...]/MASTER",
        about: "the same, sentinels and master over TLS",
        feature: "redis",
        built_in: cfg!(feature = "redis"),
        options: &["evictable", "replicas", "db", "sentinel_user", "sentinel_password", "ca", "cert", "key"],
    },
    Scheme {
        scheme: "redis+cluster",
        form: "redis+cluster://[USER:PASSWORD@]HOST:PORT[,HOST:PORT...]",
        about: "everybody who reaches a Redis Cluster",
        feature: "redis",
        built_in: cfg!(feature = "redis"),
        options: &["evictable"],
    },
    Scheme {
        scheme: "rediss+cluster",
        form: "rediss+cluster://[USER:PASSWORD@]HOST:PORT[,HOST:PORT...]",
        about: "the same over TLS",
        feature: "redis",
        built_in: cfg!(feature = "redis"),
        options: &["evictable", "ca", "cert", "key"],
    },
    Scheme {
        scheme: "quorum",
        form: "quorum:redis://HOST[:PORT]|redis://HOST[:PORT]|redis://HOST[:PORT]",
        about: "a majority of independent Redis masters (Redlock)",
        feature: "redis",
        built_in: cfg!(feature = "redis"),
        options: &["node_timeout", "longest_lease", "young", "evictable", "ca", "cert", "key"],
    },
    Scheme {
        scheme: "postgres",
        form: "postgres://[USER:PASSWORD@]HOST[:PORT][,HOST...]/DATABASE",
        about: "everybody who reaches a PostgreSQL database",
        feature: "postgres",
        built_in: cfg!(feature = "postgres"),
        options: &["mode", "migrate", "listen", "schema", "sslmode", "sslrootcert"],
    },
    Scheme {
        scheme: "mysql",
        form: "mysql://[USER:PASSWORD@]HOST[:PORT][,HOST...]/DATABASE",
        about: "everybody who reaches a MySQL or MariaDB database",
        feature: "mysql",
        built_in: cfg!(feature = "mysql"),
        options: &["mode", "migrate", "tls", "ca"],
    },
    Scheme {
        scheme: "zookeeper",
        form: "zookeeper://[USER:PASSWORD@]HOST[:PORT][,HOST...][/CHROOT]",
        about: "everybody who reaches a ZooKeeper ensemble; Curator's recipes see the same locks",
        feature: "zookeeper",
        built_in: cfg!(feature = "zookeeper"),
        options: &["session", "acl", "ca", "cert", "key"],
    },
    Scheme {
        scheme: "etcd",
        form: "etcd://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]...]",
        about: "everybody who reaches an etcd cluster",
        feature: "etcd",
        built_in: cfg!(feature = "etcd"),
        options: &[],
    },
    Scheme {
        scheme: "etcds",
        form: "etcds://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]...]",
        about: "the same over TLS",
        feature: "etcd",
        built_in: cfg!(feature = "etcd"),
        options: &["ca", "cert", "key"],
    },
    Scheme {
        scheme: "consul",
        form: "consul://[TOKEN@]HOST[:PORT]",
        about: "everybody who reaches a Consul cluster",
        feature: "consul",
        built_in: cfg!(feature = "consul"),
        options: &["layout", "lock_delay"],
    },
    Scheme {
        scheme: "consuls",
        form: "consuls://[TOKEN@]HOST[:PORT]",
        about: "the same over TLS",
        feature: "consul",
        built_in: cfg!(feature = "consul"),
        options: &["layout", "lock_delay", "ca", "cert", "key"],
    },
];

/// A URL, taken apart.
#[derive(Debug)]
pub(crate) struct Target {
    scheme: &'static Scheme,
    rest: String,
    pub(crate) namespace: Option<String>,
    pub(crate) label: Option<String>,
    /// The scheme's own options.
    options: BTreeMap<String, String>,
}

pub(crate) fn parse(url: &str) -> Result<Target> {
    let invalid = |message: String| Error::new(ErrorKind::InvalidInput, message);
    let known = || SCHEMES.iter().map(|scheme| scheme.form).collect::<Vec<_>>().join(", ");
    // Whatever is not shaped like a scheme may be a secret in the wrong place: it is not shown.
    let like_a_scheme =
        |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-".contains(&b));
    let Some((name, rest)) = url.split_once(':').filter(|(name, _)| like_a_scheme(name)) else {
        return Err(invalid(format!("a store is named by a URL ({})", known())));
    };
    let Some(scheme) = SCHEMES.iter().find(|scheme| scheme.scheme == name) else {
        let name: String = printable(name).chars().take(30).collect();
        return Err(invalid(format!("no store is called {name:?}; known are {}", known())));
    };
    if !scheme.built_in {
        let message = format!("this build has no {name} store: build with the feature \"{}\"", scheme.feature);
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let mut target = Target { scheme, rest: rest.to_string(), namespace: None, label: None, options: BTreeMap::new() };
    for option in query.split('&').filter(|option| !option.is_empty()) {
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        let value = percent_encoding::percent_decode_str(value)
            .decode_utf8()
            .map_err(|_| invalid(format!("the value of the option {:?} is not UTF-8", printable(key))))?;
        if query.split('&').filter(|other| other.split('=').next() == Some(key)).count() > 1 {
            return Err(invalid(format!("the option {:?} is given twice", printable(key))));
        }
        match key {
            "namespace" => target.namespace = Some(value.into_owned()),
            "label" => target.label = Some(value.into_owned()),
            _ if scheme.options.contains(&key) => drop(target.options.insert(key.to_string(), value.into_owned())),
            _ => {
                let all: Vec<&str> = COMMON_OPTIONS.iter().chain(scheme.options).copied().collect();
                let message = format!("{name} knows no option {:?}; known are {}", printable(key), all.join(", "));
                return Err(invalid(message));
            }
        }
    }
    Ok(target)
}

impl Target {
    /// The scheme, the URL without its query, and the scheme's own options.
    pub(crate) fn parts(&self) -> (&'static str, String, &BTreeMap<String, String>) {
        (self.scheme.scheme, format!("{}:{}", self.scheme.scheme, self.rest), &self.options)
    }

    /// Opens the store. What it keeps beside locks, if anything, is put into `beside`.
    pub(crate) async fn open(&self, label: Option<&str>, beside: &mut Beside) -> Result<Arc<dyn Store>> {
        match self.scheme.scheme {
            #[cfg(feature = "memory")]
            "memory" => {
                let store = crate::store::memory::MemoryStore::shared(&self.rest);
                let store = match label {
                    Some(label) => store.label(label),
                    None => store,
                };
                Ok(with_all(store, beside))
            }
            #[cfg(feature = "sqlite")]
            "sqlite" => {
                if self.rest.is_empty() {
                    return Err(Error::new(ErrorKind::InvalidInput, "a SQLite store needs a path: sqlite:PATH"));
                }
                // As it stands: a path is no URL, and `%` is a letter in it.
                let store = crate::store::sqlite::SqliteStore::open(&self.rest)?;
                let store = match label {
                    Some(label) => store.label(label),
                    None => store,
                };
                Ok(with_all(store, beside))
            }
            #[cfg(feature = "postgres")]
            "postgres" => {
                let url = format!("postgres:{}", self.rest);
                if self.options.get("mode").is_some_and(|mode| mode == "session") {
                    let store = crate::store::postgres::PostgresStore::connect_session(&url, &self.options).await?;
                    return Ok(Arc::new(match label {
                        Some(label) => store.label(label),
                        None => store,
                    }));
                }
                let store = crate::store::postgres::PostgresStore::connect(&url, &self.options).await?;
                let store = Arc::new(match label {
                    Some(label) => store.label(label),
                    None => store,
                });
                *beside = Beside::nothing().with_registers(store.clone());
                Ok(store)
            }
            #[cfg(feature = "mysql")]
            "mysql" => {
                let url = format!("mysql:{}", self.rest);
                if self.options.get("mode").is_some_and(|mode| mode == "session") {
                    let store = crate::store::mysql::MysqlStore::connect_session(&url, &self.options).await?;
                    return Ok(Arc::new(match label {
                        Some(label) => store.label(label),
                        None => store,
                    }));
                }
                let store = crate::store::mysql::MysqlStore::connect(&url, &self.options).await?;
                let store = Arc::new(match label {
                    Some(label) => store.label(label),
                    None => store,
                });
                *beside = Beside::nothing().with_registers(store.clone());
                Ok(store)
            }
            #[cfg(feature = "redis")]
            scheme @ ("redis" | "rediss" | "redis+unix" | "redis+sentinel" | "rediss+sentinel" | "redis+cluster"
            | "rediss+cluster") => {
                let url = format!("{scheme}:{}", self.rest);
                let store = crate::store::redis::RedisStore::connect(&url, &self.options).await?;
                let store = match label {
                    Some(label) => store.label(label),
                    None => store,
                };
                Ok(with_all(store, beside))
            }
            #[cfg(feature = "redis")]
            "quorum" => {
                let store = crate::store::quorum::QuorumStore::connect(&self.rest, &self.options).await?;
                Ok(Arc::new(match label {
                    Some(label) => store.label(label),
                    None => store,
                }))
            }
            #[cfg(feature = "consul")]
            scheme @ ("consul" | "consuls") => {
                use crate::store::consul::{ConsulLockStore, ConsulStore, is_foreign};
                let url = format!("{scheme}:{}", self.rest);
                if is_foreign(&self.options) {
                    let store = ConsulLockStore::connect(&url, &self.options).await?;
                    return Ok(Arc::new(match label {
                        Some(label) => store.label(label),
                        None => store,
                    }));
                }
                let store = ConsulStore::connect(&url, &self.options).await?;
                Ok(Arc::new(match label {
                    Some(label) => store.label(label),
                    None => store,
                }))
            }
            #[cfg(feature = "zookeeper")]
            "zookeeper" => {
                let url = format!("zookeeper:{}", self.rest);
                let store = crate::store::zookeeper::ZookeeperStore::connect(&url, &self.options).await?;
                Ok(Arc::new(match label {
                    Some(label) => store.label(label),
                    None => store,
                }))
            }
            #[cfg(feature = "etcd")]
            scheme @ ("etcd" | "etcds") => {
                let url = format!("{scheme}:{}", self.rest);
                let store = crate::store::etcd::EtcdStore::connect(&url, &self.options).await?;
                let store = Arc::new(match label {
                    Some(label) => store.label(label),
                    None => store,
                });
                *beside = Beside::nothing().with_registers(store.clone());
                Ok(store)
            }
            other => {
                let _ = (label, &self.rest, &self.options, beside);
                Err(Error::new(ErrorKind::Unsupported, format!("this build has no {other} store")))
            }
        }
    }
}

/// A store that keeps limiters and registers as well.
#[cfg(any(feature = "memory", feature = "sqlite", feature = "redis"))]
fn with_all<S: Store + crate::beside::Limiters + crate::beside::Registers>(
    store: S,
    beside: &mut Beside,
) -> Arc<dyn Store> {
    let store = Arc::new(store);
    *beside = Beside::all(&store);
    store
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_urls_are_told_with_the_cure() {
        for (url, kind, part) in [
            ("", ErrorKind::InvalidInput, "memory:[NAME]"),
            ("locks.db", ErrorKind::InvalidInput, "sqlite:PATH"),
            ("mongodb://x", ErrorKind::InvalidInput, "no store is called \"mongodb\""),
            ("memory:?colour=red", ErrorKind::InvalidInput, "known are namespace, label"),
            ("memory:?namespace=%ff", ErrorKind::InvalidInput, "not UTF-8"),
            ("memory:?label=a&label=b", ErrorKind::InvalidInput, "given twice"),
        ] {
            let error = parse(url).unwrap_err();
            assert_eq!(error.kind(), kind, "{url}");
            assert!(error.to_string().contains(part), "{url}: {error}");
        }
    }

    #[test]
    fn a_password_never_shows() {
        for url in ["mongodb://user:hunter2@host", "hunter2@host:6379", "user%hunter2:x"] {
            let error = parse(url).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("hunter2"));
        }
    }
}

//! Where the database is: what stands in the URL, and which of several hosts can be written to.

use super::fault;
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use futures_util::future::{Either, select};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder, SslOpts};
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// All of them together may take so long to be connected to.
const PATIENCE: Duration = Duration::from_secs(5);

/// Whether a server can be written to. A replica says so by `read_only`.
const WRITABLE: &str = "SELECT @@GLOBAL.read_only = 0 AND @@GLOBAL.innodb_read_only = 0";

/// What the URL and its options say.
pub(super) struct Hosts {
    all: Vec<Opts>,
    /// Which one answered last: it is asked first.
    first: AtomicUsize,
    /// For people: without user and password.
    pub(super) address: String,
    pub(super) database: String,
    /// Whether the tables may be made.
    pub(super) migrate: bool,
}

impl Hosts {
    pub(super) fn parse(url: &str, options: &BTreeMap<String, String>) -> Result<Hosts> {
        let invalid = |message: &str| Error::new(ErrorKind::InvalidInput, message);
        // The driver's error may quote the URL, password and all.
        let form = || invalid("not a URL of the form mysql://[USER:PASSWORD@]HOST[:PORT][,HOST...]/DATABASE");
        let option = |key: &str| options.get(key).map(String::as_str);
        match option("mode") {
            None | Some("rows" | "session") => {}
            Some(_) => return Err(invalid("mode is rows or session")),
        }
        let migrate = match option("migrate") {
            None | Some("on") => true,
            Some("off") => false,
            Some(_) => return Err(invalid("migrate is on or off")),
        };
        let ssl = match option("tls") {
            None | Some("off") if option("ca").is_some() => return Err(invalid("the option ca needs tls=on")),
            None | Some("off") => None,
            Some("on") => {
                let roots = option("ca").map(|path| std::path::PathBuf::from(path).into());
                let ssl = SslOpts::default().with_disable_built_in_roots(roots.is_some());
                Some(ssl.with_root_certs(roots.into_iter().collect()))
            }
            Some(_) => return Err(invalid("tls is on or off")),
        };
        // One URL for each host; the rest is the same in all.
        let rest = url.strip_prefix("mysql://").ok_or_else(form)?;
        let (authority, path) = rest.split_once('/').ok_or_else(|| invalid("the URL names no database"))?;
        let (user, hosts) = authority.rsplit_once('@').map_or((None, authority), |(user, hosts)| (Some(user), hosts));
        let mut all = Vec::new();
        let mut named = Vec::new();
        for host in hosts.split(',') {
            let user = user.map_or_else(String::new, |user| format!("{user}@"));
            let opts = Opts::from_url(&format!("mysql://{user}{host}/{path}")).map_err(|_| form())?;
            named.push(format!("{}:{}", opts.ip_or_hostname(), opts.tcp_port()));
            let opts = OptsBuilder::from_opts(opts)
                .ssl_opts(ssl.clone())
                .prefer_socket(false)
                .stmt_cache_size(0)
                .tcp_nodelay(true)
                .tcp_keepalive(Some(Duration::from_secs(10)));
            all.push(Opts::from(opts));
        }
        let database = all.first().and_then(|opts| opts.db_name()).filter(|name| !name.is_empty());
        let database = database.ok_or_else(|| invalid("the URL names no database"))?.to_string();
        let address = format!("mysql://{}/{database}", named.join(","));
        Ok(Hosts { all, first: AtomicUsize::new(0), address, database, migrate })
    }

    /// Whether there is more than one.
    pub(super) fn several(&self) -> bool {
        self.all.len() > 1
    }

    /// A connection that `begin` was said on; of several hosts, to the first that can be written to. One round trip for each
    /// statement, and one more for each of several hosts.
    pub(super) async fn open(&self, begin: &[&str], clock: &Clock) -> Result<Conn> {
        let count = self.all.len();
        let first = self.first.load(Ordering::Relaxed);
        let mut failed: Option<Error> = None;
        for at in (0..count).map(|i| (first + i) % count) {
            match self.open_one(at, begin, clock).await {
                Ok(conn) => {
                    self.first.store(at, Ordering::Relaxed);
                    return Ok(conn);
                }
                // A refusal says more than silence.
                Err(error) if failed.as_ref().is_none_or(|failed| failed.kind() == ErrorKind::Unavailable) => {
                    failed = Some(error);
                }
                Err(_) => {}
            }
        }
        Err(failed.unwrap_or_else(|| Error::new(ErrorKind::Unavailable, "there is no host")))
    }

    async fn open_one(&self, at: usize, begin: &[&str], clock: &Clock) -> Result<Conn> {
        let opts = &self.all[at];
        let address = format!("mysql://{}:{}/{}", opts.ip_or_hostname(), opts.tcp_port(), self.database);
        let opening = async {
            let mut conn = Conn::new(opts.clone()).await?;
            let writable: Option<i64> = if self.several() { conn.query_first(WRITABLE).await? } else { Some(1) };
            for told in begin {
                conn.query_drop(*told).await?;
            }
            Ok::<_, mysql_async::Error>((conn, writable))
        };
        let share = PATIENCE / u32::try_from(self.all.len()).unwrap_or(1);
        let limit = clock.sleep_until(clock.now().after(share));
        match select(pin!(opening), limit).await {
            Either::Left((Ok((conn, Some(1))), _)) => Ok(conn),
            Either::Left((Ok(_), _)) => {
                Err(Error::new(ErrorKind::Unavailable, format!("{address} is read-only, a replica perhaps")))
            }
            Either::Left((Err(error), _)) => Err(fault::of_connecting(error, &address)),
            Either::Right(_) => {
                let message = format!("{address} did not answer within {} (connect)", crate::error::spoken(share));
                Err(Error::new(ErrorKind::Unavailable, message))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str, options: &[(&str, &str)]) -> Result<Hosts> {
        Hosts::parse(url, &options.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect())
    }

    #[test]
    fn the_address_has_no_secrets() {
        let hosts = parse("mysql://ann:hunt%40er2@db1:3307,db2/shop", &[]).unwrap();
        assert_eq!(hosts.address, "mysql://db1:3307,db2:3306/shop");
        assert_eq!(hosts.all[1].pass(), Some("hunt@er2"));
        assert_eq!(parse("mysql://db/shop", &[]).unwrap().address, "mysql://db:3306/shop");
    }

    #[test]
    fn nonsense_is_told_without_the_password() {
        for (url, options) in [
            ("mysql://ann:hunter2@db1:many/shop", &[][..]),
            ("mysql://ann:hunter2@db1,:1/shop", &[]),
            ("mysql://ann:hunter2@db1", &[]),
            ("mysql://ann:hunter2@db1/", &[]),
            ("mysql://ann:hunter2@db/shop", &[("migrate", "hunter2")]),
            ("mysql://ann:hunter2@db/shop", &[("tls", "prefer")]),
            ("mysql://ann:hunter2@db/shop", &[("ca", "x.pem")]),
        ] {
            let error = parse(url, options).err().expect(url);
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
    }
}

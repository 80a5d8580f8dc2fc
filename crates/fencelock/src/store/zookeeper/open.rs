//! The address: what a URL and its options say, taken apart, and the first look at the servers before anything is entrusted
//! to them.

use super::carry::carried;
use super::fault;
use super::node::LONGEST_PATH;
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use futures_util::future::{Either, select};
use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;
use zookeeper_client::{Acls, Client, Connector, CreateMode, TlsOptions};

/// How long the first answer may take, over all servers that are named.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// Servers cut this down to the longest session that they keep, which is how it is learned.
const LONGEST_ASKED: Duration = Duration::from_secs(86_400);
/// A session below this has no time for the server's own heart beats.
pub(super) const SHORTEST: Duration = Duration::from_millis(400);

/// Where the servers are and how they are spoken to.
pub(super) struct Servers {
    /// `host:port,host:port`
    hosts: String,
    /// Empty, or a path.
    chroot: String,
    user: Option<String>,
    tls: Option<TlsOptions>,
    open: bool,
    /// One session of this length for all, where the user wants it so.
    pub(super) session: Option<Duration>,
    /// Without credentials.
    pub(super) address: String,
}

impl Servers {
    /// Of `zookeeper://[USER:PASSWORD@]HOST[:PORT][,HOST...][/CHROOT]`.
    pub(super) fn parse(url: &str, options: &BTreeMap<String, String>) -> Result<Servers> {
        let form =
            || invalid("that is no address of ZooKeeper (zookeeper://[USER:PASSWORD@]HOST[:PORT][,HOST...][/CHROOT])");
        let rest = url.strip_prefix("zookeeper://").ok_or_else(form)?;
        let (rest, chroot) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        let (user, hosts) = match rest.rsplit_once('@') {
            Some((user, hosts)) => (Some(user), hosts),
            None => (None, rest),
        };
        let user = user.map(credentials).transpose()?;
        let hosts = hosts.split(',').map(host).collect::<Option<Vec<_>>>().ok_or_else(form)?.join(",");
        let chroot = chroot.trim_end_matches('/');
        let plain = |part: &str| {
            let fine = |b: u8| b.is_ascii_alphanumeric() || b"._-%~".contains(&b);
            !part.is_empty() && part != "." && part != ".." && part.bytes().all(fine)
        };
        if !chroot.is_empty() && (chroot.len() > LONGEST_PATH / 2 || !chroot[1..].split('/').all(plain)) {
            return Err(invalid("the path behind the servers must be made of plain parts joined by '/'"));
        }
        let open = match options.get("acl").map(String::as_str) {
            None => user.is_none(),
            Some("open") => true,
            Some("creator") if user.is_some() => false,
            Some("creator") => return Err(invalid("acl=creator needs a user and a password in the address")),
            Some(_) => return Err(invalid("the option acl is open or creator")),
        };
        let session = options.get("session").map(|text| session(text)).transpose()?;
        let tls = tls(options)?;
        let address = format!("zookeeper://{hosts}{chroot}");
        Ok(Servers { hosts, chroot: chroot.to_string(), user, tls, open, session, address })
    }

    /// Who may do what with the nodes that are made: access rules are not inherited, so each node gets them.
    pub(super) fn acls(&self) -> Acls<'static> {
        if self.open { Acls::anyone_all() } else { Acls::creator_all() }
    }

    /// `host:port,host:port`
    pub(super) fn hosts(&self) -> &str {
        &self.hosts
    }

    /// Opens a session.
    pub(super) async fn connect(&self, timeout: Duration) -> Result<Client> {
        let connector = Client::connector().with_session_timeout(timeout).with_fail_eagerly();
        self.connect_by(connector, &self.chroot).await
    }

    async fn connect_by(&self, mut connector: Connector, chroot: &str) -> Result<Client> {
        if let Some(user) = &self.user {
            connector = connector.with_auth("digest", user.as_bytes());
        }
        let cluster = format!("{}{chroot}", self.hosts);
        let connecting = async {
            match &self.tls {
                Some(tls) => connector.with_tls(tls.clone()).secure_connect(&cluster).await,
                None => connector.connect(&cluster).await,
            }
        };
        let clock = Clock::system();
        let limit = clock.sleep_until(clock.now().after(CONNECT_WITHIN));
        let connected = match select(pin!(carried(connecting)), pin!(limit)).await {
            Either::Left((connected, _)) => connected,
            Either::Right(_) => Err(zookeeper_client::Error::Timeout),
        };
        self.send_at_once();
        connected.map_err(|error| fault::connecting(error, &self.address, self.tls.is_some()))
    }

    /// Looks whether the servers are there and take us, makes the chroot where it is missing, and says how long a session may
    /// be. Four round trips.
    pub(super) async fn look(&self) -> Result<Duration> {
        // A short wait for answers: the session's own length has nothing to do with it.
        let connector = Client::connector()
            .with_session_timeout(LONGEST_ASKED)
            .with_connection_timeout(CONNECT_WITHIN)
            .with_fail_eagerly();
        let client = self.connect_by(connector, "").await?;
        let longest = client.session_timeout();
        if !self.chroot.is_empty() {
            let there = client.check_stat(&self.chroot).await.map_err(|error| fault::asking(error, &self.address))?;
            if there.is_none() {
                // Not a container: it is not ours to vanish.
                let made = client.mkdir(&self.chroot, &CreateMode::Persistent.with_acls(self.acls())).await;
                made.map_err(|error| fault::asking(error, &self.address))?;
            }
        }
        Ok(longest)
    }
}

fn invalid(message: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, message)
}

/// A host that the name service or TLS can be asked about, with its port.
fn host(text: &str) -> Option<String> {
    let (name, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (name, port) = rest.split_once(']')?;
            name.parse::<std::net::Ipv6Addr>().ok()?;
            (name, port.strip_prefix(':').or(port.is_empty().then_some("2181"))?)
        }
        None => text.split_once(':').unwrap_or((text, "2181")),
    };
    let port: u16 = port.parse().ok().filter(|port| *port > 0)?;
    rustls::pki_types::ServerName::try_from(name).ok()?;
    Some(if text.starts_with('[') { format!("[{name}]:{port}") } else { format!("{name}:{port}") })
}

/// `USER:PASSWORD`, percent-decoded each.
fn credentials(text: &str) -> Result<String> {
    let decoded = |text: &str| percent_encoding::percent_decode_str(text).decode_utf8().ok().map(String::from);
    let parts = text.split_once(':').and_then(|(user, password)| Some((decoded(user)?, decoded(password)?)));
    match parts.filter(|(user, _)| !user.is_empty() && !user.contains(':')) {
        Some((user, password)) => Ok(format!("{user}:{password}")),
        None => Err(invalid("a user needs a password: USER:PASSWORD@ (digest authentication)")),
    }
}

fn session(text: &str) -> Result<Duration> {
    let wrong = |why: &str| invalid(&format!("the option session is {why}"));
    let timeout = crate::duration::parse(text).map_err(|why| wrong(&why))?;
    if (SHORTEST..=LONGEST_ASKED).contains(&timeout) { Ok(timeout) } else { Err(wrong("between 400ms and 24h")) }
}

fn tls(options: &BTreeMap<String, String>) -> Result<Option<TlsOptions>> {
    let read = |option: &str| {
        let file = options.get(option).map(std::fs::read_to_string).transpose();
        let unreadable = |error| invalid(&format!("the file of the option {option} cannot be read")).caused_by(error);
        file.map_err(unreadable)
    };
    let (ca, cert, key) = (read("ca")?, read("cert")?, read("key")?);
    let Some(ca) = ca else {
        return if cert.is_none() && key.is_none() {
            Ok(None)
        } else {
            Err(invalid("the options cert and key need ca: the certificate of the authority that signed the servers'"))
        };
    };
    // Without this, a program that has two providers in its dependencies would panic at the first connection. If the program
    // has chosen one already, that one stays.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let unusable = |what: &str| {
        let message = format!("the {what} cannot be used: PEM is needed");
        move |error: zookeeper_client::Error| invalid(&message).caused_by(error)
    };
    let tls = TlsOptions::new().with_pem_ca(&ca).map_err(unusable("file of the option ca"))?;
    match (cert, key) {
        (Some(cert), Some(key)) => {
            tls.with_pem_identity(&cert, &key).map(Some).map_err(unusable("files of the options cert and key"))
        }
        (None, None) => Ok(Some(tls)),
        _ => Err(invalid("the options cert and key go together")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str, options: &[(&str, &str)]) -> Result<Servers> {
        let options = options.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        Servers::parse(url, &options)
    }

    #[test]
    fn addresses_are_taken_apart() {
        for (url, hosts, chroot, user) in [
            ("zookeeper://a", "a:2181", "", None),
            ("zookeeper://a:1,b:2/", "a:1,b:2", "", None),
            ("zookeeper://a:1,[::1]:2/locks/x", "a:1,[::1]:2", "/locks/x", None),
            ("zookeeper://u:p%40w@10.0.0.7", "10.0.0.7:2181", "", Some("u:p@w")),
        ] {
            let servers = parse(url, &[]).unwrap();
            assert_eq!((&*servers.hosts, &*servers.chroot, servers.user.as_deref()), (hosts, chroot, user), "{url}");
            assert_eq!(servers.address, format!("zookeeper://{hosts}{chroot}"));
            assert_eq!(servers.open, user.is_none());
        }
        let servers = parse("zookeeper://u:p@a", &[("acl", "open"), ("session", "20s")]).unwrap();
        assert_eq!((servers.open, servers.session), (true, Some(Duration::from_secs(20))));
    }

    #[test]
    fn what_makes_no_sense_is_told_without_the_password() {
        let url = "zookeeper://a";
        for (url, options) in [
            ("zookeeper://", &[][..]),
            ("zookeeper://a:0", &[]),
            ("zookeeper://a b", &[]),
            ("zookeeper://a,,b", &[]),
            ("zookeeper://[::1", &[]),
            ("zookeeper://hunter2@a", &[]),
            ("zookeeper://u:hunter2@a:x", &[]),
            ("zookeeper://a/x//y", &[]),
            ("zookeeper://a/../y", &[]),
            (url, &[("acl", "creator")]),
            (url, &[("acl", "world")]),
            (url, &[("session", "20")]),
            (url, &[("session", "1ms")]),
            (url, &[("cert", "/dev/null"), ("key", "/dev/null")]),
            (url, &[("ca", "/dev/null")]),
            (url, &[("ca", "/nonexistent")]),
        ] {
            let Err(error) = parse(url, options) else { panic!("{url} {options:?}") };
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{url} {options:?}: {error}");
            assert!(!format!("{error:?}").contains("hunter2"));
        }
    }
}

//! URLs of Redis servers, and what is asked of a server before anything is entrusted to it.

use super::awake::Spin;
use super::cluster::Cluster;
use super::connection::{Dial, Live};
use super::sentinel::Sentinels;
use crate::error::{Error, ErrorKind, Result, spoken};
use redis::io::tcp::TcpSettings;
use redis::{Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion};
use std::collections::BTreeMap;
use std::time::Duration;

/// Where the server is and how it is spoken to.
pub(super) struct Server {
    pub(super) dial: Dial,
    /// Without credentials.
    pub(super) address: String,
    /// Whether a server that may evict locks is accepted.
    pub(super) evictable: bool,
    /// How many replicas have to confirm what counts.
    pub(super) replicas: Option<usize>,
    /// Whether a connection stays awake for an answer.
    pub(super) awake: Spin,
}

impl Server {
    pub(super) fn parse(url: &str, options: &BTreeMap<String, String>) -> Result<Server> {
        let evictable = match options.get("evictable").map(String::as_str) {
            None | Some("refuse") => false,
            Some("allow") => true,
            Some(_) => return Err(invalid("the option evictable is allow or refuse")),
        };
        let replicas = match options.get("replicas").map(|count| count.parse::<usize>()) {
            None => None,
            Some(Ok(count @ 1..=100)) => Some(count),
            Some(_) => return Err(invalid("the option replicas is a number from 1 to 100")),
        };
        let awake = options.get("spin").map_or(Ok(Spin::Nearby), |text| spin(text))?;
        let sentinels = match (url.strip_prefix("redis+sentinel://"), url.strip_prefix("rediss+sentinel://")) {
            (Some(rest), _) => Some(Sentinels::parse(rest, None, options)?),
            (_, Some(rest)) => Some(Sentinels::parse(rest, Some(Tls::new(options)?), options)?),
            _ => None,
        };
        if let Some(sentinels) = sentinels {
            return Ok(Server {
                address: sentinels.address(),
                dial: Dial::Sentinels(Box::new(sentinels)),
                evictable,
                replicas,
                awake,
            });
        }
        for (scheme, secure) in [("redis+cluster://", false), ("rediss+cluster://", true)] {
            if let Some(rest) = url.strip_prefix(scheme) {
                if replicas.is_some() {
                    return Err(invalid("the option replicas is not for a cluster"));
                }
                let tls = if secure { Some(Tls::new(options)?) } else { None };
                let cluster = Cluster::parse(rest, tls, options)?;
                let address = cluster.address();
                return Ok(Server { address, dial: Dial::Cluster(Box::new(cluster)), evictable, replicas, awake });
            }
        }
        // The crate's own message may repeat the URL, and with it a password.
        let info = url.into_connection_info().map_err(|_| {
            invalid(
                "that is no address of a Redis server (redis://[USER:PASSWORD@]HOST[:PORT][/DB], redis+unix:///PATH)",
            )
        })?;
        let info = with_options(info, options)?;
        let address = address(&info);
        let client = match info.addr() {
            ConnectionAddr::TcpTls { host, port, .. } => {
                let at = (host.clone(), *port);
                Tls::new(options)?.client(info, &at)?
            }
            _ if certificates(options)?.is_some() => {
                return Err(invalid("the options ca, cert and key need an address with rediss://"));
            }
            _ => Client::open(info).map_err(|error| invalid("that address cannot be used").caused_by(error))?,
        };
        Ok(Server { dial: Dial::One(Box::new(client)), address, evictable, replicas, awake })
    }
}

/// The longest that a connection stays awake.
const LONGEST_SPIN: Duration = Duration::from_millis(10);

fn spin(text: &str) -> Result<Spin> {
    let spin = crate::duration::parse(text).map_err(|why| invalid(&format!("the option spin: {why}")))?;
    if spin > LONGEST_SPIN {
        return Err(invalid("the option spin is 10ms at most"));
    }
    Ok(if spin.is_zero() { Spin::Never } else { Spin::For(spin) })
}

/// How servers are spoken to over TLS.
pub(super) struct Tls(Option<redis::TlsCertificates>);

impl Tls {
    pub(super) fn new(options: &BTreeMap<String, String>) -> Result<Tls> {
        // Without this, a program that has two providers in its dependencies would panic at the first connection. If the
        // program has chosen one already, that one stays.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        certificates(options).map(Tls)
    }

    /// The server's certificate must be for this host.
    pub(super) fn client(&self, info: ConnectionInfo, (host, port): &(String, u16)) -> Result<Client> {
        let address = ConnectionAddr::TcpTls { host: host.clone(), port: *port, insecure: false, tls_params: None };
        let info = info.set_addr(address);
        let client = match &self.0 {
            Some(certificates) => Client::build_with_tls(info, certificates.clone()),
            None => Client::open(info),
        };
        client.map_err(|error| invalid("the address or the certificates cannot be used").caused_by(error))
    }
}

/// A client for the server at this address.
pub(super) fn client(info: ConnectionInfo, tls: Option<&Tls>, at: &(String, u16)) -> Result<Client> {
    match tls {
        Some(tls) => tls.client(info, at),
        None => Client::open(info.set_addr(ConnectionAddr::Tcp(at.0.clone(), at.1)))
            .map_err(|error| invalid("that address cannot be used").caused_by(error)),
    }
}

pub(super) fn invalid(message: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, message)
}

pub(super) fn with_options(info: ConnectionInfo, options: &BTreeMap<String, String>) -> Result<ConnectionInfo> {
    let mut redis = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3).set_skip_set_lib_name();
    if let Some(user) = options.get("user") {
        redis = redis.set_username(user);
    }
    if let Some(password) = options.get("password") {
        redis = redis.set_password(password);
    }
    if let Some(db) = options.get("db") {
        redis = redis.set_db(db.parse().map_err(|_| invalid("the option db is a number"))?);
    }
    // Without this, small requests wait for the answers to earlier ones.
    let tcp = TcpSettings::default().set_nodelay(true);
    #[cfg(target_os = "linux")]
    let tcp = tcp.set_user_timeout(Duration::from_secs(10));
    Ok(info.set_redis_settings(redis).set_tcp_settings(tcp))
}

fn address(info: &ConnectionInfo) -> String {
    let db = match info.redis_settings().db() {
        0 => String::new(),
        db => format!("/{db}"),
    };
    match info.addr() {
        ConnectionAddr::TcpTls { host, port, .. } => format!("rediss://{host}:{port}{db}"),
        ConnectionAddr::Unix(path) => format!("redis+unix://{}{}", path.display(), db.replace('/', "?db=")),
        other => format!("redis://{other}{db}"),
    }
}

fn certificates(options: &BTreeMap<String, String>) -> Result<Option<redis::TlsCertificates>> {
    let read = |option: &str| {
        options
            .get(option)
            .map(|path| {
                std::fs::read(path).map_err(|error| {
                    invalid(&format!("the file of the option {option} cannot be read")).caused_by(error)
                })
            })
            .transpose()
    };
    let (ca, cert, key) = (read("ca")?, read("cert")?, read("key")?);
    if ca.is_none() && cert.is_none() && key.is_none() {
        return Ok(None);
    }
    let client_tls = match (cert, key) {
        (Some(client_cert), Some(client_key)) => Some(redis::ClientTlsConfig { client_cert, client_key }),
        (None, None) => None,
        _ => return Err(invalid("the options cert and key go together")),
    };
    Ok(Some(redis::TlsCertificates { client_tls, root_cert: ca }))
}

/// What the server tells of itself.
pub(super) struct Facts(String);

impl Facts {
    pub(super) fn fact(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    }
}

/// One round trip.
pub(super) async fn info(live: &Live, address: &str) -> Result<Facts> {
    let info = live.send(&redis::cmd("INFO"), address).await?;
    redis::from_redis_value(info).map(Facts).map_err(|_| super::unreadable())
}

/// Asks the server whether it can keep locks, and has been up for long enough: one round trip.
pub(super) async fn check(live: &Live, address: &str, evictable: bool, grown: Duration) -> Result<()> {
    let facts = info(live, address).await?;
    if facts.fact("cluster_enabled") == Some("1") {
        let cure = address.replace("://", "+cluster://");
        let message = format!("the server is a node of a Redis Cluster: name it as {cure}");
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    suits(&facts, 6, evictable, grown)
}

/// The same of a node of a cluster, which has to know how to tell on the node that has the line.
pub(super) async fn check_node(live: &Live, address: &str, evictable: bool) -> Result<()> {
    suits(&info(live, address).await?, 7, evictable, Duration::ZERO)
}

fn suits(facts: &Facts, needed: u32, evictable: bool, grown: Duration) -> Result<()> {
    let fact = |name: &str| facts.fact(name);
    if fact("loading") == Some("1") {
        return Err(Error::new(ErrorKind::Unavailable, "the server is still loading its data"));
    }
    if matches!(fact("role"), Some("slave" | "replica")) {
        let message = "the server is a read-only replica: name its master, or the sentinels";
        return Err(Error::new(ErrorKind::Denied, message));
    }
    let major = fact("redis_version").and_then(|version| version.split('.').next()?.parse::<u32>().ok());
    if major.is_some_and(|major| major < needed) {
        let message = format!("the server is Redis {}; {needed} is needed", fact("redis_version").unwrap_or_default());
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    if fact("arch_bits").is_some_and(|bits| bits != "64") {
        return Err(Error::new(ErrorKind::Unsupported, "the server is a 32-bit build, whose numbers are too short"));
    }
    // Whole seconds, rounded down: never taken for older than it is.
    let up =
        fact("uptime_in_seconds").and_then(|seconds| seconds.parse().ok()).map_or(Duration::ZERO, Duration::from_secs);
    if up < grown {
        let message = format!(
            "the server has been up for {} only and may have forgotten locks that are still held: it votes after {} (or at \
             once with ?young=allow, for servers that have never held any)",
            spoken(up),
            spoken(grown)
        );
        return Err(Error::new(ErrorKind::Unavailable, message));
    }
    match fact("maxmemory_policy") {
        Some("noeviction") => Ok(()),
        _ if evictable => Ok(()),
        Some(policy) => {
            let message = format!(
                "the server's maxmemory-policy is {policy}, which can remove locks: set it to noeviction (or accept that with \
                 ?evictable=allow)"
            );
            Err(Error::new(ErrorKind::Unsupported, message))
        }
        None => {
            let message = "the server does not tell its maxmemory-policy, which may remove locks: see to it that it is \
                           noeviction, and say so with ?evictable=allow";
            Err(Error::new(ErrorKind::Unsupported, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn for_how_long_a_connection_stays_awake() {
        let awake = |spin: Option<&str>| {
            let options = spin.map(|spin| ("spin".to_string(), spin.to_string())).into_iter().collect();
            Server::parse("redis://localhost", &options).map(|server| server.awake)
        };
        assert_eq!(awake(None).unwrap(), Spin::Nearby);
        assert_eq!(awake(Some("0")).unwrap(), Spin::Never);
        assert_eq!(awake(Some("10ms")).unwrap(), Spin::For(LONGEST_SPIN));
        for wrong in ["", "often", "-1ms", "11ms", "1h", "200us"] {
            let error = awake(Some(wrong)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{wrong}");
            assert!(error.to_string().contains("the option spin"), "{error}");
        }
    }
}

//! URLs of etcd servers: `etcd://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]...]`, `etcds://` with TLS.

use crate::error::{Error, ErrorKind, Result};
use percent_encoding::percent_decode_str;
use std::collections::BTreeMap;
use std::time::Duration;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

const PORT: u16 = 2379;
/// How long one server may take to be connected to; there may be others.
pub(super) const CONNECT_WITHIN: Duration = Duration::from_millis(1500);

/// Where the servers are and how they are spoken to.
pub(super) struct Servers {
    /// In the order of the URL, each with what to call it.
    pub(super) endpoints: Vec<(Endpoint, String)>,
    pub(super) user: Option<(String, String)>,
    /// All of them, without credentials.
    pub(super) address: String,
}

fn invalid(message: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, message)
}

impl Servers {
    pub(super) fn parse(url: &str, options: &BTreeMap<String, String>) -> Result<Servers> {
        // The URL may hold a password, so no message repeats it.
        let form = || invalid("etcd servers are named as etcd://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]...]");
        let (secure, rest) = match (url.strip_prefix("etcds://"), url.strip_prefix("etcd://")) {
            (Some(rest), _) => (true, rest),
            (None, Some(rest)) => (false, rest),
            (None, None) => return Err(form()),
        };
        let (credentials, hosts) = match rest.rsplit_once('@') {
            Some((credentials, hosts)) => (Some(credentials), hosts),
            None => (None, rest),
        };
        let decoded = |text: &str| percent_decode_str(text).decode_utf8().map(String::from).map_err(|_| form());
        let user = match credentials {
            None => None,
            Some(credentials) => {
                let (user, password) = credentials.split_once(':').ok_or_else(form)?;
                Some((decoded(user)?, decoded(password)?))
            }
        };
        let hosts: Vec<String> =
            hosts.trim_end_matches('/').split(',').map(host).collect::<Option<_>>().ok_or_else(form)?;
        let tls = tls(options)?;
        if !secure && tls.is_some() {
            return Err(invalid("the options ca, cert and key need an address with etcds://"));
        }
        let tls = secure.then(|| tls.unwrap_or_else(|| ClientTlsConfig::new().with_native_roots()));
        if secure {
            // Without this, a program that has two providers in its dependencies would panic at the first connection. If the
            // program has chosen one already, that one stays.
            let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        }
        let endpoints = hosts.iter().map(|host| endpoint(host, tls.as_ref())).collect::<Result<_>>()?;
        let address = format!("{}://{}", if secure { "etcds" } else { "etcd" }, hosts.join(","));
        Ok(Servers { endpoints, user, address })
    }
}

/// `host:port`, with the usual port where none is named.
fn host(text: &str) -> Option<String> {
    let plain = |host: &str| {
        !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b':'))
    };
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => (format!("[{host}]"), None),
        Some((host, port)) => (format!("[{host}]"), Some(port.strip_prefix(':')?)),
        None => match text.split_once(':') {
            Some((host, port)) => (host.to_string(), Some(port)),
            None => (text.to_string(), None),
        },
    };
    let port: u16 = port.map_or(Some(PORT), |port| port.parse().ok())?;
    plain(host.trim_matches(['[', ']'])).then(|| format!("{host}:{port}"))
}

fn endpoint(host: &str, tls: Option<&ClientTlsConfig>) -> Result<(Endpoint, String)> {
    let unusable =
        |error: tonic::transport::Error| invalid("the address or the certificates cannot be used").caused_by(error);
    let scheme = if tls.is_some() { "https" } else { "http" };
    let mut endpoint = Endpoint::from_shared(format!("{scheme}://{host}"))
        .map_err(unusable)?
        .connect_timeout(CONNECT_WITHIN)
        // A server that is pinged more often than every 5 s, or while nothing is under way, hangs up.
        .http2_keep_alive_interval(Duration::from_secs(6))
        .keep_alive_timeout(Duration::from_secs(3))
        .keep_alive_while_idle(false);
    if let Some(tls) = tls {
        endpoint = endpoint.tls_config(tls.clone()).map_err(unusable)?;
    }
    Ok((endpoint, host.to_string()))
}

fn tls(options: &BTreeMap<String, String>) -> Result<Option<ClientTlsConfig>> {
    let read = |option: &str| {
        let read = |path: &String| {
            std::fs::read(path)
                .map_err(|error| invalid(&format!("the file of the option {option} cannot be read")).caused_by(error))
        };
        options.get(option).map(read).transpose()
    };
    let (ca, cert, key) = (read("ca")?, read("cert")?, read("key")?);
    if ca.is_none() && cert.is_none() && key.is_none() {
        return Ok(None);
    }
    let mut tls = ClientTlsConfig::new();
    tls = match ca {
        Some(ca) => tls.ca_certificate(Certificate::from_pem(ca)),
        None => tls.with_native_roots(),
    };
    match (cert, key) {
        (Some(cert), Some(key)) => Ok(Some(tls.identity(Identity::from_pem(cert, key)))),
        (None, None) => Ok(Some(tls)),
        _ => Err(invalid("the options cert and key go together")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        let servers = |url| Servers::parse(url, &BTreeMap::new());
        for (url, address) in [
            ("etcd://a", "etcd://a:2379"),
            ("etcd://a:1,b,[::1],[::2]:7", "etcd://a:1,b:2379,[::1]:2379,[::2]:7"),
            ("etcd://us%40r:p%3Aw@10.0.0.1:5/", "etcd://10.0.0.1:5"),
            ("etcds://a", "etcds://a:2379"),
        ] {
            assert_eq!(servers(url).unwrap().address, address);
        }
        let user = servers("etcd://us%40r:p%3A:w@a").unwrap().user;
        assert_eq!(user, Some(("us@r".into(), "p::w".into())));
        for url in
            ["etcd://", "etcd:a", "etcd://a,,b", "etcd://a:x", "etcd://hunter2@a", "etcd://a:hunter2", "etcd://a/b"]
        {
            let error = servers(url).err().unwrap_or_else(|| panic!("{url}"));
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{url}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn certificates_need_tls_and_each_other() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let with = |url, names: &[&str]| {
            let path = file.path().to_string_lossy().into_owned();
            let options = names.iter().map(|name| (name.to_string(), path.clone())).collect();
            Servers::parse(url, &options).err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert!(with("etcd://a", &["ca"]).contains("etcds://"));
        assert!(with("etcds://a", &["cert"]).contains("go together"));
        let missing = BTreeMap::from([("ca".to_string(), "/no/such/file".to_string())]);
        assert!(Servers::parse("etcds://a", &missing).err().unwrap().to_string().contains("option ca cannot be read"));
    }
}

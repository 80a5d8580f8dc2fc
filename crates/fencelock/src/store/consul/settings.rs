//! URLs of Consul agents and the options in them.

use crate::error::{Error, ErrorKind, Result};
use percent_encoding::percent_decode_str;
use reqwest::{Certificate, Client, ClientBuilder, Identity, redirect::Policy};
use std::collections::BTreeMap;
use std::time::Duration;

const CONNECT_WITHIN: Duration = Duration::from_secs(2);

/// Where the agent is, and how it is spoken to.
pub(super) struct Settings {
    /// For people, without credentials.
    pub(super) address: String,
    /// What every path is appended to.
    pub(super) base: String,
    pub(super) token: Option<String>,
    /// Whether the lock of `consul lock` is taken.
    pub(super) foreign: bool,
    pub(super) lock_delay: Duration,
    ca: Option<Vec<Certificate>>,
    identity: Option<Identity>,
}

impl Settings {
    /// `consul://[TOKEN@]HOST[:PORT]` or `consuls://...`.
    pub(super) fn parse(url: &str, options: &BTreeMap<String, String>) -> Result<Settings> {
        let wrong = || invalid("that is no address of a Consul agent (consul://[TOKEN@]HOST[:PORT])");
        let (scheme, rest) = url.split_once("://").ok_or_else(wrong)?;
        let tls = scheme == "consuls";
        let (token, host) = match rest.rsplit_once('@') {
            Some((token, host)) => (Some(token), host),
            None => (None, rest),
        };
        let host = host.trim_end_matches('/');
        let named = host.strip_prefix('[').map_or_else(|| host.split(':').next(), |rest| rest.split(']').next());
        if named.is_none_or(str::is_empty) || host.contains(['/', '?', '#', ' ']) {
            return Err(wrong());
        }
        let port = host.rsplit(':').next().filter(|port| !port.contains(']') && host.contains(':'));
        if port.is_some_and(|port| port.parse::<u16>().is_err()) {
            return Err(wrong());
        }
        let host = if port.is_some() { host.to_string() } else { format!("{host}:{}", if tls { 8501 } else { 8500 }) };
        let token = match token {
            Some(token) => Some(percent_decode_str(token).decode_utf8().map_err(|_| wrong())?.into_owned()),
            None => std::env::var("CONSUL_HTTP_TOKEN").ok(),
        };
        let foreign = match options.get("layout").map(String::as_str) {
            None | Some("fencelock") => false,
            Some("consul-lock") => true,
            Some(_) => return Err(invalid("the option layout is fencelock or consul-lock")),
        };
        let lock_delay = match options.get("lock_delay") {
            None => Duration::ZERO,
            Some(_) if !foreign => return Err(invalid("the option lock_delay needs layout=consul-lock")),
            Some(text) => {
                crate::duration::parse(text).map_err(|why| invalid(&format!("the option lock_delay: {why}")))?
            }
        };
        if lock_delay > Duration::from_secs(60) {
            return Err(invalid("the option lock_delay is 60s at most"));
        }
        let read = |option: &str| {
            let file = options.get(option).map(std::fs::read).transpose();
            file.map_err(|error| invalid(&format!("the file of the option {option} cannot be read")).caused_by(error))
        };
        let (ca, cert, key) = (read("ca")?, read("cert")?, read("key")?);
        if !tls && (ca.is_some() || cert.is_some() || key.is_some()) {
            return Err(invalid("the options ca, cert and key need an address with consuls://"));
        }
        let unusable = |error: reqwest::Error| invalid("the certificates cannot be used").caused_by(error);
        let ca = ca.map(|pem| Certificate::from_pem_bundle(&pem)).transpose().map_err(unusable)?;
        let identity = match (cert, key) {
            (Some(cert), Some(key)) => {
                Some(Identity::from_pem(&[cert, b"\n".to_vec(), key].concat()).map_err(unusable)?)
            }
            (None, None) => None,
            _ => return Err(invalid("the options cert and key go together")),
        };
        if tls {
            // Without this, a program that has two providers in its dependencies would panic at the first connection.
            let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        }
        Ok(Settings {
            address: format!("{scheme}://{host}"),
            base: format!("{}://{host}", if tls { "https" } else { "http" }),
            token: token.filter(|token| !token.is_empty()),
            foreign,
            lock_delay,
            ca,
            identity,
        })
    }

    /// A client with connections of its own.
    pub(super) fn client(&self) -> Result<Client> {
        let mut builder: ClientBuilder = Client::builder()
            .no_proxy()
            .redirect(Policy::none())
            .connect_timeout(CONNECT_WITHIN)
            .tcp_nodelay(true)
            .tcp_keepalive(Duration::from_secs(10));
        if let Some(ca) = &self.ca {
            builder = builder.tls_certs_only(ca.iter().cloned());
        }
        if let Some(identity) = &self.identity {
            builder = builder.identity(identity.clone());
        }
        builder.build().map_err(|error| invalid("the address or the certificates cannot be used").caused_by(error))
    }
}

fn invalid(message: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str, options: &[(&str, &str)]) -> Result<Settings> {
        let options = options.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        Settings::parse(url, &options)
    }

    #[test]
    fn addresses() {
        for (url, base, token) in [
            ("consul://h", "http://h:8500", None),
            ("consul://secret%21@h:1234", "http://h:1234", Some("secret!")),
            ("consuls://h/", "https://h:8501", None),
            ("consul://[::1]", "http://[::1]:8500", None),
            ("consul://[::1]:99", "http://[::1]:99", None),
        ] {
            let settings = parse(url, &[]).unwrap();
            assert_eq!(settings.base, base);
            assert!(token.is_none() || settings.token.as_deref() == token, "{url}");
            assert!(!settings.address.contains("secret"), "{url}");
        }
        for url in ["consul://", "consul://secret@", "consul://h:port", "consul://h/x", "consul:h"] {
            let error = parse(url, &[]).err().expect(url);
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }

    #[test]
    fn options() {
        assert!(parse("consul://h", &[("layout", "consul-lock"), ("lock_delay", "1s")]).unwrap().foreign);
        for (option, value) in
            [("layout", "other"), ("lock_delay", "1s"), ("ca", "x"), ("cert", "x"), ("key", "no-such-file")]
        {
            assert!(parse("consul://h", &[(option, value)]).is_err(), "{option}");
        }
        assert!(parse("consul://h", &[("layout", "consul-lock"), ("lock_delay", "61s")]).is_err());
    }
}

//! Where the database is, and how we connect to it: what stands in the URL.

use crate::error::{Error, ErrorKind, Result};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};
use tokio_postgres::{Config, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

/// The schema that the tables live in, unless the URL names another.
pub(crate) const SCHEMA: &str = "fencelock";
/// The server ends a statement that takes longer than this; we give up a little later.
pub(super) const STATEMENT_TIMEOUT: Duration = Duration::from_millis(4500);

/// How waiters are woken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Listen {
    /// By LISTEN on the same address, if that works there.
    Here,
    /// By LISTEN on another address of the same database.
    At(String, u16),
    /// Not at all: they look by themselves.
    Off,
}

#[derive(Clone)]
pub(super) struct Settings {
    pub(super) config: Config,
    /// What a connection is told first; a pooler may not take that.
    pub(super) told: String,
    pub(super) tls: Option<Arc<rustls::ClientConfig>>,
    pub(super) schema: String,
    pub(super) migrate: bool,
    pub(super) listen: Listen,
    pub(super) address: String,
}

impl Settings {
    pub(super) fn parse(url: &str, options: &BTreeMap<String, String>) -> Result<Settings> {
        let invalid = |message: String| Error::new(ErrorKind::InvalidInput, message);
        let mut config = Config::from_str(url).map_err(|_| {
            // The driver's error may quote the URL, password and all.
            invalid("not a URL of the form postgres://[USER:PASSWORD@]HOST[:PORT][,HOST...]/DATABASE".into())
        })?;
        if config.get_hosts().is_empty() {
            return Err(invalid("the URL names no host".into()));
        }
        if config.get_hosts().len() > 1 {
            // Of several hosts the one that can be written to. Another round trip per connection.
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        let option = |key: &str| options.get(key).map(String::as_str);
        match option("mode") {
            None | Some("rows" | "session") => {}
            Some(_) => return Err(invalid("mode is rows or session".into())),
        }
        let migrate = match option("migrate") {
            None | Some("on") => true,
            Some("off") => false,
            Some(_) => return Err(invalid("migrate is on or off".into())),
        };
        let schema = option("schema").unwrap_or(SCHEMA).to_string();
        check_schema(&schema)?;
        let listen = match option("listen") {
            None | Some("on") => Listen::Here,
            Some("off") => Listen::Off,
            Some(address) => {
                let (host, port) = address.rsplit_once(':').unwrap_or((address, "5432"));
                let port = port.parse().map_err(|_| invalid("listen is HOST:PORT, on or off".into()))?;
                Listen::At(host.trim_matches(['[', ']']).to_string(), port)
            }
        };
        let tls = match option("sslmode") {
            None | Some("disable") => {
                config.ssl_mode(SslMode::Disable);
                None
            }
            Some("require" | "verify-ca" | "verify-full") => {
                config.ssl_mode(SslMode::Require);
                Some(Arc::new(tls_config(option("sslrootcert"))?))
            }
            Some(_) => {
                return Err(invalid(
                    "sslmode is disable or verify-full; a certificate that is not checked protects nothing".into(),
                ));
            }
        };
        config
            .application_name("fencelock")
            .keepalives(true)
            .keepalives_idle(Duration::from_secs(10))
            .keepalives_interval(Duration::from_secs(3))
            .keepalives_retries(3)
            .tcp_user_timeout(Duration::from_secs(10));
        let told = format!(
            "-c statement_timeout={} -c default_transaction_isolation=read\\ committed -c default_transaction_read_only=off",
            STATEMENT_TIMEOUT.as_millis()
        );
        let address = address(&config);
        Ok(Settings { config, told, tls, schema, migrate, listen, address })
    }

    /// Where to LISTEN.
    pub(super) fn listener(&self) -> Settings {
        let mut settings = self.clone();
        if let Listen::At(host, port) = &self.listen {
            let mut config = Config::new();
            config.host(host).port(*port).ssl_mode(self.config.get_ssl_mode()).application_name("fencelock");
            if let Some(user) = self.config.get_user() {
                config.user(user);
            }
            if let Some(password) = self.config.get_password() {
                config.password(password);
            }
            if let Some(database) = self.config.get_dbname() {
                config.dbname(database);
            }
            settings.config = config;
        }
        settings
    }
}

/// Whether a schema's name can be put into our SQL.
pub(crate) fn check_schema(schema: &str) -> Result<()> {
    let plain = schema.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    if !plain || schema.is_empty() || schema.len() > 60 || schema.as_bytes()[0].is_ascii_digit() {
        return Err(Error::new(ErrorKind::InvalidInput, "a schema is named by up to 60 of a-z, 0-9 and _"));
    }
    Ok(())
}

/// Where it is, without user and password.
fn address(config: &Config) -> String {
    let ports = config.get_ports();
    let host = |(i, host): (usize, &Host)| {
        let port = ports.get(i).or(ports.first()).copied().unwrap_or(5432);
        match host {
            Host::Tcp(host) => format!("{host}:{port}"),
            #[cfg(unix)]
            Host::Unix(path) => format!("{}:{port}", path.display()),
        }
    };
    let hosts: Vec<String> = config.get_hosts().iter().enumerate().map(host).collect();
    format!("postgres://{}/{}", hosts.join(","), config.get_dbname().or(config.get_user()).unwrap_or(""))
}

/// Certificates are checked, against `roots` or the well-known authorities, and so is the host's name.
fn tls_config(roots: Option<&str>) -> Result<rustls::ClientConfig> {
    let mut store = rustls::RootCertStore::empty();
    match roots {
        None => store.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        Some(path) => {
            let bad = |error: String| {
                Error::new(ErrorKind::InvalidInput, format!("cannot read the file of sslrootcert: {error}"))
            };
            for cert in CertificateDer::pem_file_iter(path).map_err(|error| bad(error.to_string()))? {
                let cert = cert.map_err(|error| bad(error.to_string()))?;
                store.add(cert).map_err(|error| bad(error.to_string()))?;
            }
            if store.is_empty() {
                return Err(bad("there is no certificate in it".into()));
            }
        }
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::new(ErrorKind::Broken, error.to_string()))?;
    Ok(config.with_root_certificates(store).with_no_client_auth())
}

/// A connection: the client, and the messages that nobody asked for.
pub(super) type Opened = (tokio_postgres::Client, tokio::sync::mpsc::UnboundedReceiver<String>);

/// Connects, and runs the connection on `runtime`.
pub(super) async fn open(
    settings: &Settings,
    runtime: &tokio::runtime::Handle,
) -> Result<Opened, tokio_postgres::Error> {
    let mut config = settings.config.clone();
    config.options(&settings.told);
    match open_with(&config, settings.tls.as_ref(), runtime).await {
        // A pooler that takes no parameters: then without.
        Err(error) if super::fault::is_unwanted_parameter(&error) => {
            open_with(&settings.config, settings.tls.as_ref(), runtime).await
        }
        done => done,
    }
}

async fn open_with(
    config: &Config,
    tls: Option<&Arc<rustls::ClientConfig>>,
    runtime: &tokio::runtime::Handle,
) -> Result<Opened, tokio_postgres::Error> {
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
    match tls {
        None => {
            let (client, connection) = config.connect(NoTls).await?;
            runtime.spawn(drive(connection, sender));
            Ok((client, receiver))
        }
        Some(tls) => {
            let (client, connection) = config.connect(MakeRustlsConnect::new((**tls).clone())).await?;
            runtime.spawn(drive(connection, sender));
            Ok((client, receiver))
        }
    }
}

/// The life of a connection.
async fn drive<S, T>(
    mut connection: tokio_postgres::Connection<S, T>,
    notes: tokio::sync::mpsc::UnboundedSender<String>,
) where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    loop {
        match std::future::poll_fn(|cx| connection.poll_message(cx)).await {
            Some(Ok(tokio_postgres::AsyncMessage::Notification(note))) => {
                // Whoever does not listen has dropped the other end.
                let _ = notes.send(note.payload().to_string());
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                tracing::debug!(%error, "a connection to PostgreSQL has ended");
                return;
            }
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str, options: &[(&str, &str)]) -> Result<Settings> {
        Settings::parse(url, &options.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect())
    }

    #[test]
    fn the_address_has_no_secrets() {
        let settings = parse("postgres://ann:hunter2@db1:5433,db2/shop", &[]).unwrap();
        assert_eq!(settings.address, "postgres://db1:5433,db2:5432/shop");
    }

    #[test]
    fn nonsense_is_told_without_the_password() {
        for (url, options) in [
            ("postgres://ann:hunter2@db1:many/shop", &[][..]),
            ("postgres://ann:hunter2@db/shop", &[("schema", "a\"b")]),
            ("postgres://ann:hunter2@db/shop", &[("migrate", "hunter2")]),
            ("postgres://ann:hunter2@db/shop", &[("sslmode", "prefer")]),
            ("postgres://ann:hunter2@db/shop", &[("listen", "db:x")]),
        ] {
            let error = parse(url, options).err().expect(url);
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
    }
}

//! Opening a quorum of Redis masters by its URL.

use super::{QuorumStore, Settings};
use crate::error::{Error, ErrorKind, Result};
use crate::store::Store;
use crate::store::redis::RedisStore;
use std::collections::BTreeMap;
use std::sync::Arc;

impl QuorumStore {
    /// Connects to the Redis masters that are named in `urls`, separated by bars, without a query. `options` are those of the
    /// query; `evictable`, `ca`, `cert` and `key` go to every node. A minority may be out of reach.
    ///
    /// # Errors
    /// `InvalidInput` for URLs or options that make no sense, or for one server named twice; otherwise what too many nodes
    /// said.
    pub async fn connect(urls: &str, options: &BTreeMap<String, String>) -> Result<QuorumStore> {
        let mut settings = Settings::default();
        let mut options = options.clone();
        for (option, setting) in
            [("node_timeout", &mut settings.node_timeout), ("longest_lease", &mut settings.longest_lease)]
        {
            if let Some(text) = options.remove(option) {
                let wrong = |why: String| invalid(format!("the option {option}: {why}"));
                *setting = crate::duration::parse(&text).map_err(wrong)?;
                if setting.is_zero() {
                    return Err(wrong("must not be zero".into()));
                }
            }
        }
        let grown = match options.remove("young").as_deref() {
            None | Some("refuse") => super::longer(settings.longest_lease),
            Some("allow") => std::time::Duration::ZERO,
            Some(_) => return Err(invalid("the option young is allow or refuse".into())),
        };
        let mut nodes = Vec::new();
        for url in urls.split('|') {
            if !["redis://", "rediss://", "redis+unix://"].iter().any(|scheme| url.starts_with(scheme)) {
                let message = "a quorum is of Redis masters: quorum:redis://HOST|redis://HOST|redis://HOST";
                return Err(invalid(message.into()));
            }
            nodes.push(Arc::new(RedisStore::node(url, &options, grown)?));
        }
        let stores = nodes.iter().map(|node| node.clone() as Arc<dyn Store>).collect();
        let quorum = QuorumStore::over(stores, settings)?;
        let found = futures_util::future::join_all(nodes.iter().map(|node| node.run_id())).await;
        let (mut servers, mut errors) = (Vec::<String>::new(), Vec::new());
        for (at, found) in found.into_iter().enumerate() {
            match found {
                Ok(server) if servers.contains(&server) => {
                    let message = format!("{} is a server that is named twice", nodes[at].info().address);
                    return Err(invalid(message));
                }
                Ok(server) => servers.push(server),
                Err(error) => errors.push((at, error)),
            }
        }
        if servers.len() < quorum.shared.majority() {
            return Err(quorum.shared.too_few(servers.len(), &errors));
        }
        Ok(quorum)
    }
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidInput, message)
}

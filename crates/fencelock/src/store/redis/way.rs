//! The way to a server: the connection below the redis crate's client, on which requests that come about together are sent together.
//! With 64 tasks on one connection a lock and its release go from half a packet to a tenth of one, and with the packets goes what
//! both sides spend on being woken.

use super::awake::{AsSocket, Awake, Spin, UnderWay};
use crate::store::together::Together;
use futures_util::future::select_ok;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, RedisResult};
use std::io;
use std::ops::Deref;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::task::AbortHandle;

/// As much is kept back for company, two or three locks and their releases. With more, all tasks of a client would go in step: it
/// would wait while the server works, and the server while it does.
const SOON: usize = 1000;
/// As many requests may wait to be sent before whoever has another one waits as well.
const WAITING: usize = 1024;

/// A connection, which is closed when this is dropped.
pub(super) struct Way {
    connection: MultiplexedConnection,
    /// Not where the crate has it.
    driver: Option<AbortHandle>,
}

impl Deref for Way {
    type Target = MultiplexedConnection;

    fn deref(&self) -> &MultiplexedConnection {
        &self.connection
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        if let Some(driver) = &self.driver {
            driver.abort();
        }
    }
}

impl Way {
    /// One round trip to connect, and one to say who we are. Over TLS the crate does all of it.
    pub(super) async fn open(
        client: &Client,
        config: AsyncConnectionConfig,
        awake: Spin,
        under_way: &UnderWay,
    ) -> RedisResult<Way> {
        let config = config.set_pipeline_buffer_size(WAITING).set_write_backpressure_boundary(SOON);
        let info = client.get_connection_info();
        match info.addr() {
            ConnectionAddr::Tcp(host, port) => {
                let stream = tcp((host, *port), info).await?;
                // A server has no other address than ours only where it is here.
                let here = stream.peer_addr()?.ip() == stream.local_addr()?.ip();
                Way::over(stream, info, config, awake.here(here), under_way).await
            }
            #[cfg(unix)]
            ConnectionAddr::Unix(path) => {
                let stream = tokio::net::UnixStream::connect(path).await?;
                Way::over(stream, info, config, awake.here(true), under_way).await
            }
            _ => {
                let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
                Ok(Way { connection, driver: None })
            }
        }
    }

    async fn over<S>(
        stream: S,
        info: &ConnectionInfo,
        config: AsyncConnectionConfig,
        spin: Option<Duration>,
        under_way: &UnderWay,
    ) -> RedisResult<Way>
    where
        S: AsyncRead + AsyncWrite + AsSocket + Send + Unpin + 'static,
    {
        let stream = Together::new(stream, SOON);
        match spin {
            None => Way::on(stream, info, config).await,
            Some(spin) => Way::on(Awake::new(stream, under_way.clone(), spin), info, config).await,
        }
    }

    async fn on<S>(stream: S, info: &ConnectionInfo, config: AsyncConnectionConfig) -> RedisResult<Way>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (connection, driver) =
            MultiplexedConnection::new_with_config(info.redis_settings(), stream, config).await?;
        Ok(Way { connection, driver: Some(tokio::spawn(driver).abort_handle()) })
    }
}

/// All addresses of the host at once: whichever answers first.
async fn tcp(at: (&str, u16), info: &ConnectionInfo) -> io::Result<TcpStream> {
    let all: Vec<_> = lookup_host(at).await?.map(|address| Box::pin(TcpStream::connect(address))).collect();
    if all.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the host has no address"));
    }
    let (stream, settings) = (select_ok(all).await?.0, info.tcp_settings());
    stream.set_nodelay(settings.nodelay())?;
    #[cfg(target_os = "linux")]
    redis::io::tcp::socket2::SockRef::from(&stream).set_tcp_user_timeout(settings.user_timeout())?;
    Ok(stream)
}

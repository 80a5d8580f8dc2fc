//! The floor below the etcd store: the barest correct calls, on a connection with the store's settings.

use crate::worker::Failure;
use rpc::compare::{CompareResult, CompareTarget, TargetUnion};
use rpc::kv_client::KvClient;
use rpc::lease_client::LeaseClient;
use rpc::request_op::Request;
use rpc::{Compare, DeleteRangeRequest, LeaseGrantRequest, PutRequest, RequestOp, TxnRequest};
use tonic::transport::{Channel, Endpoint};

#[path = "../../../crates/fencelock/src/store/etcd/frame.rs"]
mod frame;
#[path = "../../../crates/fencelock/src/store/etcd/rpc.rs"]
#[allow(
    clippy::all,
    clippy::allow_attributes_without_reason,
    dead_code,
    missing_docs,
    unreachable_pub,
    reason = "it is made by a program, for the store"
)]
mod rpc;

/// One connection, and a lease that is long enough for a run.
#[derive(Clone)]
pub(crate) struct FloorEtcd {
    channel: Channel,
    lease: i64,
}

impl FloorEtcd {
    pub(crate) async fn connect(addr: &str) -> Result<FloorEtcd, Failure> {
        let host = addr.trim_start_matches("etcd://").split(',').next().unwrap_or_default();
        let channel = Endpoint::from_shared(format!("http://{host}"))?.tcp_nodelay(true).connect().await?;
        let grant = LeaseGrantRequest { ttl: 600, id: 0 };
        let lease = LeaseClient::new(channel.clone()).lease_grant(grant).await?.into_inner().id;
        Ok(FloorEtcd { channel, lease })
    }

    async fn ask(&self, key: &str, made: i64, act: Request) -> Result<Option<i64>, Failure> {
        let compare = Compare {
            result: CompareResult::Equal.into(),
            target: CompareTarget::Create.into(),
            key: key.to_string().into(),
            target_union: Some(TargetUnion::CreateRevision(made)),
            ..Compare::default()
        };
        let success = vec![RequestOp { request: Some(act) }];
        let question = TxnRequest { compare: vec![compare], success, failure: Vec::new() };
        let answer = KvClient::new(frame::Unary(self.channel.clone())).txn(question).await?.into_inner();
        Ok(answer.header.filter(|_| answer.succeeded).map(|header| header.revision))
    }

    /// Makes the key if it is not there, and says in which revision.
    pub(crate) async fn put(&self, name: &str) -> Result<Option<i64>, Failure> {
        let put = PutRequest { key: name.to_string().into(), lease: self.lease, ..PutRequest::default() };
        self.ask(name, 0, Request::RequestPut(put)).await
    }

    /// Deletes the key if it is still the one that was made then.
    pub(crate) async fn delete(&self, name: &str, made: i64) -> Result<(), Failure> {
        let delete = DeleteRangeRequest { key: name.to_string().into() };
        self.ask(name, made, Request::RequestDeleteRange(delete)).await.map(drop)
    }
}

//! Transactions in few words. Each goes through the servers' log, also where it only looks: a plain read may come from a server
//! that was paused and does not know what it missed.

use super::rpc::compare::{CompareResult, CompareTarget, TargetUnion};
use super::rpc::request_op::Request;
use super::rpc::response_op::Response;
use super::rpc::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, RangeResponse, RequestOp, TxnRequest, TxnResponse,
};
use crate::error::{Error, ErrorKind, Result};
use prost::bytes::Bytes;

/// The keys from the first up to the second.
pub(super) type Range = (Bytes, Bytes);

/// The key was made in this revision; 0: there is none.
pub(super) fn made_in(key: &Bytes, revision: i64) -> Compare {
    compare(key, None, CompareResult::Equal, CompareTarget::Create, TargetUnion::CreateRevision(revision))
}

/// The key was last written in this revision; 0: there is none.
pub(super) fn changed_in(key: &Bytes, revision: i64) -> Compare {
    compare(key, None, CompareResult::Equal, CompareTarget::Mod, TargetUnion::ModRevision(revision))
}

/// The key was not written after this revision, if ever.
pub(super) fn not_after(key: &Bytes, revision: i64) -> Compare {
    compare(key, None, CompareResult::Less, CompareTarget::Mod, TargetUnion::ModRevision(revision + 1))
}

/// There are no keys here.
pub(super) fn empty(range: &Range) -> Compare {
    // The server compares a key that is not there as one of revision 0, and wants it to be true of each that is.
    compare(&range.0, Some(&range.1), CompareResult::Equal, CompareTarget::Create, TargetUnion::CreateRevision(0))
}

/// Nothing here is newer than this revision. What has gone since then does not count.
pub(super) fn nothing_after(range: &Range, revision: i64) -> Compare {
    compare(&range.0, Some(&range.1), CompareResult::Less, CompareTarget::Mod, TargetUnion::ModRevision(revision + 1))
}

fn compare(
    key: &Bytes,
    end: Option<&Bytes>,
    result: CompareResult,
    target: CompareTarget,
    target_union: TargetUnion,
) -> Compare {
    Compare {
        result: result.into(),
        target: target.into(),
        key: key.clone(),
        target_union: Some(target_union),
        range_end: end.cloned().unwrap_or_default(),
    }
}

pub(super) fn put(key: &Bytes, value: Vec<u8>, lease: i64) -> RequestOp {
    let put = PutRequest { key: key.clone(), value: value.into(), lease, ..PutRequest::default() };
    RequestOp { request: Some(Request::RequestPut(put)) }
}

/// Writes a key as it is, if it was made in that revision: whoever watches it is told that it was there.
pub(super) fn touch(key: &Bytes, revision: i64) -> RequestOp {
    let put = PutRequest { key: key.clone(), ignore_value: true, ignore_lease: true, ..PutRequest::default() };
    let success = vec![RequestOp { request: Some(Request::RequestPut(put)) }];
    nested(TxnRequest { compare: vec![made_in(key, revision)], success, failure: Vec::new() })
}

pub(super) fn delete(key: &Bytes) -> RequestOp {
    RequestOp { request: Some(Request::RequestDeleteRange(DeleteRangeRequest { key: key.clone() })) }
}

/// Whether it may delete this key.
pub(super) fn deletes(txn: &TxnRequest, key: &Bytes) -> bool {
    let one = |op: &RequestOp| matches!(&op.request, Some(Request::RequestDeleteRange(delete)) if delete.key == *key);
    txn.success.iter().chain(&txn.failure).any(one)
}

pub(super) fn read(range: &Range) -> RequestOp {
    RequestOp { request: Some(Request::RequestRange(whole(range))) }
}

/// What a question of its own would find.
pub(super) fn read_one(range: RangeRequest) -> RequestOp {
    RequestOp { request: Some(Request::RequestRange(range)) }
}

/// How many tickets are read where some are enough. In longer lines one that another client entered under the same id is not
/// found; nobody but a test enters another's ticket.
const SOME: i64 = 64;

/// Some tickets of a line: enough to see that there is no room, however long it is.
pub(super) fn read_some(range: &Range) -> RequestOp {
    RequestOp { request: Some(Request::RequestRange(RangeRequest { limit: SOME, ..whole(range) })) }
}

/// Whether a key is there, without its value.
pub(super) fn look_at(key: &Bytes) -> RequestOp {
    let range = RangeRequest { key: key.clone(), keys_only: true, ..RangeRequest::default() };
    RequestOp { request: Some(Request::RequestRange(range)) }
}

pub(super) fn nested(txn: TxnRequest) -> RequestOp {
    RequestOp { request: Some(Request::RequestTxn(txn)) }
}

/// Two transactions in one message and one revision. Both conditions are judged before either is carried out.
pub(super) fn together(first: TxnRequest, second: TxnRequest) -> TxnRequest {
    TxnRequest { success: vec![nested(first), nested(second)], ..TxnRequest::default() }
}

/// The answers to each of the two.
pub(super) fn apart(answer: TxnResponse) -> Result<(TxnResponse, TxnResponse)> {
    let header = answer.header;
    let mut each = answer.responses.into_iter().map(|op| match op.response {
        // Only the whole has a revision, which is that of both.
        Some(Response::ResponseTxn(one)) => Ok(TxnResponse { header, ..one }),
        _ => Err(unreadable()),
    });
    match (each.next(), each.next()) {
        (Some(first), Some(second)) => Ok((first?, second?)),
        _ => Err(unreadable()),
    }
}

pub(super) fn whole(range: &Range) -> RangeRequest {
    RangeRequest { key: range.0.clone(), range_end: range.1.clone(), ..RangeRequest::default() }
}

/// Takes a ticket out, if it is the one that was made then.
pub(super) fn take_out(key: &Bytes, revision: Option<i64>) -> TxnRequest {
    // Of a ticket whose enter was never answered the revision is not known. Its key is its own anyhow.
    let compare = revision.map(|revision| made_in(key, revision)).into_iter().collect();
    TxnRequest { compare, success: vec![delete(key)], failure: Vec::new() }
}

/// Does `success` if the key was made in that revision. The other branch writes, so that it goes through the log; there is
/// nothing for it to delete but a ticket of ours that nobody knows.
pub(super) fn if_there(key: &Bytes, revision: i64, success: Vec<RequestOp>) -> TxnRequest {
    TxnRequest { compare: vec![made_in(key, revision)], success, failure: vec![delete(key)] }
}

pub(super) fn unreadable() -> Error {
    Error::new(ErrorKind::Broken, "the server's answer cannot be read").effect_unknown()
}

/// The revision of the answer.
pub(super) fn revision(answer: &TxnResponse) -> Result<i64> {
    answer.header.as_ref().map(|header| header.revision).ok_or_else(unreadable)
}

/// What each read of the answer found, in order.
pub(super) fn reads(answer: TxnResponse) -> Vec<RangeResponse> {
    let read = |response| match response {
        Some(Response::ResponseRange(range)) => Some(range),
        _ => None,
    };
    answer.responses.into_iter().filter_map(|op| read(op.response)).collect()
}

/// Whether a transaction that takes a ticket out found it.
pub(super) fn took_out(answer: &TxnResponse) -> bool {
    let deleted =
        |op: &super::rpc::ResponseOp| matches!(&op.response, Some(Response::ResponseDeleteRange(d)) if d.deleted > 0);
    answer.succeeded && answer.responses.iter().any(deleted)
}

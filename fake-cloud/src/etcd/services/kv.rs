//! The service `etcdserverpb.KV`.

use bytes::Bytes;
use prost::Message;
use tonic::Status;

use super::super::auth::Access;
use super::super::error::EtcdError;
use super::super::key_range::KeyRange;
use super::super::proto::KeyValue;
use super::super::proto::etcdserverpb::{
    self as pb, CompareTargetUnion, RequestOpUnion, ResponseHeader, ResponseOpUnion,
};
use super::super::range::{Detail, Order, Range, RangeResponse, SortBy};
use super::super::store::Caller;
use super::super::txn::{
    Assign, Compare, Delete, DeleteResponse, MAX_OPERATIONS, Operand, Operation, OperationResponse, Put, PutResponse,
    Relation, Txn, TxnResponse,
};
use super::Context;

/// The largest Raft entry in bytes that a server with default settings accepts.
const MAX_ENTRY: usize = 1024 * 1024 * 3 / 2;
/// Bytes that a Raft entry adds to its request.
const ENTRY_OVERHEAD: usize = 18;

pub(super) fn range(
    context: &Context,
    caller: &Caller,
    request: &pb::RangeRequest,
) -> Result<pb::RangeResponse, Status> {
    if request.key.is_empty() {
        return Err(EtcdError::EmptyKey.into());
    }
    context.store.permit(caller, &[Access::read(&request.key, &request.range_end)])?;
    let response = context.store.range(&decode_range(request))?;
    let header = context.header(response.revision);
    Ok(range_response(header, &response, request))
}

pub(super) async fn put(
    context: &Context,
    caller: &Caller,
    request: &pb::PutRequest,
) -> Result<pb::PutResponse, Status> {
    validate_put(request)?;
    validate_size(request)?;
    permit_put(context, caller, request)?;
    let put = decode_put(request);
    let response = context.store.write(|store| store.put(&put)).await?;
    let header = context.header(response.revision);
    Ok(put_response(header, &response, request))
}

pub(super) async fn delete_range(
    context: &Context,
    caller: &Caller,
    request: &pb::DeleteRangeRequest,
) -> Result<pb::DeleteRangeResponse, Status> {
    let delete = decode_delete(request);
    delete.validate()?;
    validate_size(request)?;
    let write = Access::write(&request.key, &request.range_end);
    let read = request.prev_kv.then_some(Access::read(&request.key, &request.range_end));
    context.store.permit(caller, &[Some(write), read].into_iter().flatten().collect::<Vec<_>>())?;
    let response = context.store.write(|store| store.delete(&delete)).await?;
    let header = context.header(response.revision);
    Ok(delete_response(header, &response, request))
}

pub(super) async fn txn(
    context: &Context,
    caller: &Caller,
    request: &pb::TxnRequest,
) -> Result<pb::TxnResponse, Status> {
    validate_txn(request, MAX_OPERATIONS)?;
    let txn = decode_txn(request)?;
    txn.validate()?;
    // Read-only transactions are not written to the Raft log.
    if txn.may_write() {
        validate_size(request)?;
    }
    if context.store.checks(caller) {
        context.store.permit(caller, &txn_accesses(request))?;
    }
    let response = context.store.write(|store| store.txn(&txn)).await?;
    let header = context.header(response.revision);
    Ok(txn_response(header, &response, request))
}

pub(super) fn compact(
    context: &Context,
    caller: &Caller,
    request: &pb::CompactionRequest,
) -> Result<pb::CompactionResponse, Status> {
    context.store.permit(caller, &[])?;
    let revision = context.store.compact(request.revision)?;
    Ok(pb::CompactionResponse { header: context.header(revision) })
}

/// Checks the permissions for a put. Besides the key, all keys that share its lease must be writable: a caller who may
/// not revoke a lease may not attach keys to it.
fn permit_put(context: &Context, caller: &Caller, request: &pb::PutRequest) -> Result<(), EtcdError> {
    if !context.store.checks(caller) {
        return Ok(());
    }
    let shared = context.store.with(|store, _| store.lease_keys(request.lease));
    let mut accesses = vec![Access::write(&request.key, &[])];
    accesses.extend(shared.iter().map(|key| Access::write(key, &[])));
    accesses.extend(request.prev_kv.then_some(Access::read(&request.key, &[])));
    context.store.permit(caller, &accesses)
}

/// The permissions that a transaction needs, in both branches. As in real etcd, nested transactions are not checked.
fn txn_accesses(request: &pb::TxnRequest) -> Vec<Access<'_>> {
    let mut accesses: Vec<_> =
        request.compare.iter().map(|compare| Access::read(&compare.key, &compare.range_end)).collect();
    for operation in request.success.iter().chain(&request.failure) {
        match &operation.request {
            Some(RequestOpUnion::Range(range)) => accesses.push(Access::read(&range.key, &range.range_end)),
            Some(RequestOpUnion::Put(put)) => accesses.push(Access::write(&put.key, &[])),
            Some(RequestOpUnion::DeleteRange(delete)) => {
                accesses.extend(delete.prev_kv.then_some(Access::read(&delete.key, &delete.range_end)));
                accesses.push(Access::write(&delete.key, &delete.range_end));
            }
            Some(RequestOpUnion::Txn(_)) | None => {}
        }
    }
    accesses
}

fn validate_size(request: &impl Message) -> Result<(), EtcdError> {
    let is_too_large = request.encoded_len() + ENTRY_OVERHEAD > MAX_ENTRY;
    if is_too_large { Err(EtcdError::RequestTooLarge) } else { Ok(()) }
}

/// Checks everything that does not depend on the store, in the order of real etcd.
fn validate_txn(request: &pb::TxnRequest, allowed: usize) -> Result<(), EtcdError> {
    let operations = request.compare.len().max(request.success.len()).max(request.failure.len());
    let left = allowed.checked_sub(operations).ok_or(EtcdError::TooManyOperations)?;
    if request.compare.iter().any(|compare| compare.key.is_empty()) {
        return Err(EtcdError::EmptyKey);
    }
    request.success.iter().chain(&request.failure).try_for_each(|operation| match &operation.request {
        Some(RequestOpUnion::Range(range)) if range.key.is_empty() => Err(EtcdError::EmptyKey),
        Some(RequestOpUnion::DeleteRange(delete)) if delete.key.is_empty() => Err(EtcdError::EmptyKey),
        Some(RequestOpUnion::Range(_) | RequestOpUnion::DeleteRange(_)) => Ok(()),
        Some(RequestOpUnion::Put(put)) => validate_put(put),
        Some(RequestOpUnion::Txn(txn)) => validate_txn(txn, left),
        None => Err(EtcdError::KeyNotFound),
    })
}

fn validate_put(request: &pb::PutRequest) -> Result<(), EtcdError> {
    if request.key.is_empty() {
        return Err(EtcdError::EmptyKey);
    }
    if request.ignore_value && !request.value.is_empty() {
        return Err(EtcdError::ValueProvided);
    }
    if request.ignore_lease && request.lease != 0 {
        return Err(EtcdError::LeaseProvided);
    }
    Ok(())
}

fn decode_range(request: &pb::RangeRequest) -> Range {
    let at_least = |revision: i64| if revision == 0 { i64::MIN } else { revision };
    let at_most = |revision: i64| if revision == 0 { i64::MAX } else { revision };
    Range {
        keys: KeyRange::new(request.key.clone(), request.range_end.clone()),
        revision: request.revision,
        limit: request.limit,
        sort_by: match request.sort_target {
            1 => SortBy::Version,
            2 => SortBy::CreateRevision,
            3 => SortBy::ModRevision,
            4 => SortBy::Value,
            _ => SortBy::Key,
        },
        order: match request.sort_order {
            1 => Order::Ascending,
            2 => Order::Descending,
            _ => Order::Unsorted,
        },
        modified: at_least(request.min_mod_revision)..=at_most(request.max_mod_revision),
        created: at_least(request.min_create_revision)..=at_most(request.max_create_revision),
        detail: match (request.count_only, request.keys_only) {
            (true, _) => Detail::CountOnly,
            (false, true) => Detail::KeysOnly,
            (false, false) => Detail::Full,
        },
    }
}

fn decode_put(request: &pb::PutRequest) -> Put {
    Put {
        key: request.key.clone(),
        value: if request.ignore_value { Assign::Keep } else { Assign::Set(request.value.clone()) },
        lease: if request.ignore_lease { Assign::Keep } else { Assign::Set(request.lease) },
    }
}

fn decode_delete(request: &pb::DeleteRangeRequest) -> Delete {
    Delete { keys: KeyRange::new(request.key.clone(), request.range_end.clone()) }
}

fn decode_txn(request: &pb::TxnRequest) -> Result<Txn, EtcdError> {
    Ok(Txn {
        compares: request.compare.iter().map(decode_compare).collect(),
        success: request.success.iter().map(decode_operation).collect::<Result<_, _>>()?,
        failure: request.failure.iter().map(decode_operation).collect::<Result<_, _>>()?,
    })
}

fn decode_operation(operation: &pb::RequestOp) -> Result<Operation, EtcdError> {
    Ok(match &operation.request {
        Some(RequestOpUnion::Range(range)) => Operation::Range(decode_range(range)),
        Some(RequestOpUnion::Put(put)) => Operation::Put(decode_put(put)),
        Some(RequestOpUnion::DeleteRange(delete)) => Operation::Delete(decode_delete(delete)),
        Some(RequestOpUnion::Txn(txn)) => Operation::Txn(decode_txn(txn)?),
        None => return Err(EtcdError::KeyNotFound),
    })
}

/// The target selects the field. An operand of another field is ignored, and zero is used instead.
fn decode_compare(compare: &pb::Compare) -> Compare {
    let operand = match (compare.target, compare.target_union.as_ref()) {
        (0, Some(CompareTargetUnion::Version(version))) => Operand::Version(*version),
        (0, _) => Operand::Version(0),
        (1, Some(CompareTargetUnion::CreateRevision(revision))) => Operand::CreateRevision(*revision),
        (1, _) => Operand::CreateRevision(0),
        (2, Some(CompareTargetUnion::ModRevision(revision))) => Operand::ModRevision(*revision),
        (2, _) => Operand::ModRevision(0),
        (3, Some(CompareTargetUnion::Value(value))) => Operand::Value(value.clone()),
        (3, _) => Operand::Value(Bytes::new()),
        (_, Some(CompareTargetUnion::Lease(lease))) => Operand::Lease(*lease),
        (_, _) => Operand::Lease(0),
    };
    let relation = match compare.result {
        1 => Relation::Greater,
        2 => Relation::Less,
        3 => Relation::NotEqual,
        _ => Relation::Equal,
    };
    Compare { keys: KeyRange::new(compare.key.clone(), compare.range_end.clone()), relation, operand }
}

fn range_response(
    header: Option<ResponseHeader>,
    response: &RangeResponse,
    request: &pb::RangeRequest,
) -> pb::RangeResponse {
    let mut kvs: Vec<_> = response.records.iter().map(|record| KeyValue::from(&**record)).collect();
    if request.keys_only {
        kvs.iter_mut().for_each(|kv| kv.value = Bytes::new());
    }
    pb::RangeResponse { header, kvs, more: response.more, count: response.count }
}

fn put_response(header: Option<ResponseHeader>, response: &PutResponse, request: &pb::PutRequest) -> pb::PutResponse {
    let previous = response.previous.as_ref().filter(|_| request.prev_kv);
    pb::PutResponse { header, prev_kv: previous.map(|record| KeyValue::from(&**record)) }
}

fn delete_response(
    header: Option<ResponseHeader>,
    response: &DeleteResponse,
    request: &pb::DeleteRangeRequest,
) -> pb::DeleteRangeResponse {
    let previous = response.previous.iter().filter(|_| request.prev_kv);
    pb::DeleteRangeResponse {
        header,
        deleted: i64::try_from(response.previous.len()).unwrap_or(i64::MAX),
        prev_kvs: previous.map(|record| KeyValue::from(&**record)).collect(),
    }
}

fn txn_response(header: Option<ResponseHeader>, response: &TxnResponse, request: &pb::TxnRequest) -> pb::TxnResponse {
    let branch = if response.succeeded { &request.success } else { &request.failure };
    let responses =
        response.responses.iter().zip(branch).map(|(response, request)| operation_response(response, request));
    pb::TxnResponse { header, succeeded: response.succeeded, responses: responses.collect() }
}

/// Encodes the response to one operation. Its header contains only a revision.
fn operation_response(response: &OperationResponse, request: &pb::RequestOp) -> pb::ResponseOp {
    let header = |revision| Some(ResponseHeader { revision, ..ResponseHeader::default() });
    let response = match (response, &request.request) {
        (OperationResponse::Range(response), Some(RequestOpUnion::Range(request))) => {
            Some(ResponseOpUnion::Range(range_response(header(response.revision), response, request)))
        }
        (OperationResponse::Put(response), Some(RequestOpUnion::Put(request))) => {
            Some(ResponseOpUnion::Put(put_response(header(response.revision), response, request)))
        }
        (OperationResponse::Delete(response), Some(RequestOpUnion::DeleteRange(request))) => {
            Some(ResponseOpUnion::DeleteRange(delete_response(header(response.revision), response, request)))
        }
        (OperationResponse::Txn(response), Some(RequestOpUnion::Txn(request))) => {
            Some(ResponseOpUnion::Txn(txn_response(header(response.revision), response, request)))
        }
        (_, _) => None,
    };
    pb::ResponseOp { response }
}

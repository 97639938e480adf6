//! `etcdserverpb.KV`.

use bytes::Bytes;
use prost::Message;
use tonic::Response;

use super::super::error::EtcdError;
use super::super::key_range::KeyRange;
use super::super::proto::common::ResponseHeader;
use super::super::proto::kv as pb;
use super::super::range::{Detail, Order, Range, RangeAnswer, SortBy};
use super::super::txn::{Compare, MAX_OPERATIONS, Operand, Operation, OperationAnswer, Relation, Txn, TxnAnswer};
use super::super::write::{Assign, Delete, DeleteAnswer, Put, PutAnswer};
use super::context::{Context, key_value};
use super::grpc::Answer;

/// The largest entry the log of a server with default settings takes.
const MAX_ENTRY: usize = 1024 * 1024 * 3 / 2;
/// What the log adds to a request.
const ENTRY_OVERHEAD: usize = 18;

pub(super) fn range(context: &Context, request: &pb::RangeRequest) -> Result<pb::RangeResponse, EtcdError> {
    let answer = context.store.range(&asked_range(request))?;
    let header = context.header(answer.revision);
    Ok(range_response(header, answer, request))
}

pub(super) async fn put(context: &Context, request: pb::PutRequest) -> Answer<pb::PutResponse> {
    check_put(&request)?;
    check_size(&request)?;
    let put = asked_put(&request);
    let answer = context.store.write(|store| store.put(&put)).await?;
    let header = context.header(answer.revision);
    Ok(Response::new(put_response(header, &answer, &request)))
}

pub(super) async fn delete_range(
    context: &Context,
    request: pb::DeleteRangeRequest,
) -> Answer<pb::DeleteRangeResponse> {
    let delete = asked_delete(&request);
    delete.check()?;
    check_size(&request)?;
    let answer = context.store.write(|store| store.delete(&delete)).await?;
    let header = context.header(answer.revision);
    Ok(Response::new(delete_response(header, &answer, &request)))
}

pub(super) async fn txn(context: &Context, request: pb::TxnRequest) -> Answer<pb::TxnResponse> {
    check_txn(&request, MAX_OPERATIONS)?;
    let txn = asked_txn(&request)?;
    txn.check()?;
    // What only reads does not go through the log.
    if txn.may_write() {
        check_size(&request)?;
    }
    let answer = context.store.write(|store| store.txn(&txn)).await?;
    let header = context.header(answer.revision);
    Ok(Response::new(txn_response(header, answer, &request)))
}

pub(super) fn compact(context: &Context, request: &pb::CompactionRequest) -> Result<pb::CompactionResponse, EtcdError> {
    let revision = context.store.compact(request.revision)?;
    Ok(pb::CompactionResponse { header: context.header(revision) })
}

fn check_size(request: &impl Message) -> Result<(), EtcdError> {
    let is_too_large = request.encoded_len() + ENTRY_OVERHEAD > MAX_ENTRY;
    if is_too_large { Err(EtcdError::RequestTooLarge) } else { Ok(()) }
}

/// Refuses what is wrong by itself, in the order in which a real server looks at it.
fn check_txn(request: &pb::TxnRequest, allowed: usize) -> Result<(), EtcdError> {
    let operations = request.compare.len().max(request.success.len()).max(request.failure.len());
    let left = allowed.checked_sub(operations).ok_or(EtcdError::TooManyOperations)?;
    if request.compare.iter().any(|compare| compare.key.is_empty()) {
        return Err(EtcdError::EmptyKey);
    }
    request.success.iter().chain(&request.failure).try_for_each(|operation| match &operation.request {
        Some(pb::Request::Range(range)) if range.key.is_empty() => Err(EtcdError::EmptyKey),
        Some(pb::Request::DeleteRange(delete)) if delete.key.is_empty() => Err(EtcdError::EmptyKey),
        Some(pb::Request::Range(_) | pb::Request::DeleteRange(_)) => Ok(()),
        Some(pb::Request::Put(put)) => check_put(put),
        Some(pb::Request::Txn(txn)) => check_txn(txn, left),
        None => Err(EtcdError::KeyNotFound),
    })
}

fn check_put(request: &pb::PutRequest) -> Result<(), EtcdError> {
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

fn asked_range(request: &pb::RangeRequest) -> Range {
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

fn asked_put(request: &pb::PutRequest) -> Put {
    Put {
        key: request.key.clone(),
        value: if request.ignore_value { Assign::Keep } else { Assign::Set(request.value.clone()) },
        lease: if request.ignore_lease { Assign::Keep } else { Assign::Set(request.lease) },
    }
}

fn asked_delete(request: &pb::DeleteRangeRequest) -> Delete {
    Delete { keys: KeyRange::new(request.key.clone(), request.range_end.clone()) }
}

fn asked_txn(request: &pb::TxnRequest) -> Result<Txn, EtcdError> {
    Ok(Txn {
        compares: request.compare.iter().map(asked_compare).collect(),
        success: request.success.iter().map(asked_operation).collect::<Result<_, _>>()?,
        failure: request.failure.iter().map(asked_operation).collect::<Result<_, _>>()?,
    })
}

fn asked_operation(operation: &pb::RequestOp) -> Result<Operation, EtcdError> {
    Ok(match &operation.request {
        Some(pb::Request::Range(range)) => Operation::Range(asked_range(range)),
        Some(pb::Request::Put(put)) => Operation::Put(asked_put(put)),
        Some(pb::Request::DeleteRange(delete)) => Operation::Delete(asked_delete(delete)),
        Some(pb::Request::Txn(txn)) => Operation::Txn(asked_txn(txn)?),
        None => return Err(EtcdError::KeyNotFound),
    })
}

/// The target decides what is compared; an operand of another kind counts as none was given.
fn asked_compare(compare: &pb::Compare) -> Compare {
    let given = compare.target_union.as_ref();
    let operand = match (compare.target, given) {
        (0, Some(pb::TargetUnion::Version(version))) => Operand::Version(*version),
        (0, _) => Operand::Version(0),
        (1, Some(pb::TargetUnion::CreateRevision(revision))) => Operand::CreateRevision(*revision),
        (1, _) => Operand::CreateRevision(0),
        (2, Some(pb::TargetUnion::ModRevision(revision))) => Operand::ModRevision(*revision),
        (2, _) => Operand::ModRevision(0),
        (3, Some(pb::TargetUnion::Value(value))) => Operand::Value(value.clone()),
        (3, _) => Operand::Value(Bytes::new()),
        (_, Some(pb::TargetUnion::Lease(lease))) => Operand::Lease(*lease),
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

fn range_response(header: Option<ResponseHeader>, answer: RangeAnswer, asked: &pb::RangeRequest) -> pb::RangeResponse {
    let mut kvs: Vec<_> = answer.records.iter().map(|record| key_value(record)).collect();
    if asked.keys_only {
        kvs.iter_mut().for_each(|kv| kv.value = Bytes::new());
    }
    pb::RangeResponse { header, kvs, more: answer.more, count: answer.count }
}

fn put_response(header: Option<ResponseHeader>, answer: &PutAnswer, asked: &pb::PutRequest) -> pb::PutResponse {
    let previous = answer.previous.as_ref().filter(|_| asked.prev_kv);
    pb::PutResponse { header, prev_kv: previous.map(|record| key_value(record)) }
}

fn delete_response(
    header: Option<ResponseHeader>,
    answer: &DeleteAnswer,
    asked: &pb::DeleteRangeRequest,
) -> pb::DeleteRangeResponse {
    let previous = answer.previous.iter().filter(|_| asked.prev_kv);
    pb::DeleteRangeResponse {
        header,
        deleted: i64::try_from(answer.previous.len()).unwrap_or(i64::MAX),
        prev_kvs: previous.map(|record| key_value(record)).collect(),
    }
}

fn txn_response(header: Option<ResponseHeader>, answer: TxnAnswer, request: &pb::TxnRequest) -> pb::TxnResponse {
    let branch = if answer.succeeded { &request.success } else { &request.failure };
    let steps = answer.answers.into_iter().zip(branch).map(|(answer, asked)| step_response(answer, asked));
    pb::TxnResponse { header, succeeded: answer.succeeded, responses: steps.collect() }
}

/// The answer to one step. Its header has a revision and nothing else.
fn step_response(answer: OperationAnswer, asked: &pb::RequestOp) -> pb::ResponseOp {
    let header = |revision| Some(ResponseHeader { revision, ..ResponseHeader::default() });
    let response = match (answer, &asked.request) {
        (OperationAnswer::Range(answer), Some(pb::Request::Range(asked))) => {
            Some(pb::Response::Range(range_response(header(answer.revision), answer, asked)))
        }
        (OperationAnswer::Put(answer), Some(pb::Request::Put(asked))) => {
            Some(pb::Response::Put(put_response(header(answer.revision), &answer, asked)))
        }
        (OperationAnswer::Delete(answer), Some(pb::Request::DeleteRange(asked))) => {
            Some(pb::Response::DeleteRange(delete_response(header(answer.revision), &answer, asked)))
        }
        (OperationAnswer::Txn(answer), Some(pb::Request::Txn(asked))) => {
            Some(pb::Response::Txn(txn_response(header(answer.revision), answer, asked)))
        }
        (_, _) => None,
    };
    pb::ResponseOp { response }
}

//! The JSON gateway: gRPC calls as `POST /v3/…` with JSON bodies, and streams as one JSON object per line.
//!
//! Each request is converted to a gRPC call of this server, so that both have the same behavior, faults and permissions.

mod schema;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures_util::stream;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::Incoming;
use prost::Message as _;
use prost_reflect::{DynamicMessage, MessageDescriptor, SerializeOptions};
use serde_json::{Value, json};
use tonic::body::Body;
use tonic::{Code, Status};

use super::server::plain;
use super::services::{self, CallReset, Context};

/// The largest JSON body of a request in bytes: a message of the largest size, in base64.
const MAX_JSON: usize = 4 * 1024 * 1024;
/// Bytes before each message of a gRPC body: a flag for compression, and the length of the message.
const PREFIX: usize = 5;

/// The messages that a call exchanges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Exchange {
    /// One request and one response.
    Unary,
    /// One request and a stream of responses.
    Responses,
    /// A stream of requests and a stream of responses.
    Bidirectional,
}

/// A path of the gateway and the gRPC call behind it.
#[derive(Debug)]
struct Route {
    path: &'static str,
    call: &'static str,
    request: &'static str,
    response: &'static str,
    exchange: Exchange,
}

const fn unary(path: &'static str, call: &'static str, request: &'static str, response: &'static str) -> Route {
    Route { path, call, request, response, exchange: Exchange::Unary }
}

const fn responses(path: &'static str, call: &'static str, request: &'static str, response: &'static str) -> Route {
    Route { path, call, request, response, exchange: Exchange::Responses }
}

const fn bidirectional(path: &'static str, call: &'static str, request: &'static str, response: &'static str) -> Route {
    Route { path, call, request, response, exchange: Exchange::Bidirectional }
}

/// All paths. There is none for the hash of the keys, as in etcd 3.5.
const ROUTES: [Route; 49] = [
    unary("/v3/kv/range", "/etcdserverpb.KV/Range", "RangeRequest", "RangeResponse"),
    unary("/v3/kv/put", "/etcdserverpb.KV/Put", "PutRequest", "PutResponse"),
    unary("/v3/kv/deleterange", "/etcdserverpb.KV/DeleteRange", "DeleteRangeRequest", "DeleteRangeResponse"),
    unary("/v3/kv/txn", "/etcdserverpb.KV/Txn", "TxnRequest", "TxnResponse"),
    unary("/v3/kv/compaction", "/etcdserverpb.KV/Compact", "CompactionRequest", "CompactionResponse"),
    bidirectional("/v3/watch", "/etcdserverpb.Watch/Watch", "WatchRequest", "WatchResponse"),
    unary("/v3/lease/grant", "/etcdserverpb.Lease/LeaseGrant", "LeaseGrantRequest", "LeaseGrantResponse"),
    unary("/v3/lease/revoke", "/etcdserverpb.Lease/LeaseRevoke", "LeaseRevokeRequest", "LeaseRevokeResponse"),
    unary("/v3/kv/lease/revoke", "/etcdserverpb.Lease/LeaseRevoke", "LeaseRevokeRequest", "LeaseRevokeResponse"),
    bidirectional(
        "/v3/lease/keepalive",
        "/etcdserverpb.Lease/LeaseKeepAlive",
        "LeaseKeepAliveRequest",
        "LeaseKeepAliveResponse",
    ),
    unary(
        "/v3/lease/timetolive",
        "/etcdserverpb.Lease/LeaseTimeToLive",
        "LeaseTimeToLiveRequest",
        "LeaseTimeToLiveResponse",
    ),
    unary(
        "/v3/kv/lease/timetolive",
        "/etcdserverpb.Lease/LeaseTimeToLive",
        "LeaseTimeToLiveRequest",
        "LeaseTimeToLiveResponse",
    ),
    unary("/v3/lease/leases", "/etcdserverpb.Lease/LeaseLeases", "LeaseLeasesRequest", "LeaseLeasesResponse"),
    unary("/v3/kv/lease/leases", "/etcdserverpb.Lease/LeaseLeases", "LeaseLeasesRequest", "LeaseLeasesResponse"),
    unary("/v3/cluster/member/add", "/etcdserverpb.Cluster/MemberAdd", "MemberAddRequest", "MemberAddResponse"),
    unary(
        "/v3/cluster/member/remove",
        "/etcdserverpb.Cluster/MemberRemove",
        "MemberRemoveRequest",
        "MemberRemoveResponse",
    ),
    unary(
        "/v3/cluster/member/update",
        "/etcdserverpb.Cluster/MemberUpdate",
        "MemberUpdateRequest",
        "MemberUpdateResponse",
    ),
    unary("/v3/cluster/member/list", "/etcdserverpb.Cluster/MemberList", "MemberListRequest", "MemberListResponse"),
    unary(
        "/v3/cluster/member/promote",
        "/etcdserverpb.Cluster/MemberPromote",
        "MemberPromoteRequest",
        "MemberPromoteResponse",
    ),
    unary("/v3/maintenance/alarm", "/etcdserverpb.Maintenance/Alarm", "AlarmRequest", "AlarmResponse"),
    unary("/v3/maintenance/status", "/etcdserverpb.Maintenance/Status", "StatusRequest", "StatusResponse"),
    unary(
        "/v3/maintenance/defragment",
        "/etcdserverpb.Maintenance/Defragment",
        "DefragmentRequest",
        "DefragmentResponse",
    ),
    unary("/v3/maintenance/hash", "/etcdserverpb.Maintenance/Hash", "HashRequest", "HashResponse"),
    responses("/v3/maintenance/snapshot", "/etcdserverpb.Maintenance/Snapshot", "SnapshotRequest", "SnapshotResponse"),
    unary(
        "/v3/maintenance/transfer-leadership",
        "/etcdserverpb.Maintenance/MoveLeader",
        "MoveLeaderRequest",
        "MoveLeaderResponse",
    ),
    unary("/v3/auth/enable", "/etcdserverpb.Auth/AuthEnable", "AuthEnableRequest", "AuthEnableResponse"),
    unary("/v3/auth/disable", "/etcdserverpb.Auth/AuthDisable", "AuthDisableRequest", "AuthDisableResponse"),
    unary("/v3/auth/status", "/etcdserverpb.Auth/AuthStatus", "AuthStatusRequest", "AuthStatusResponse"),
    unary("/v3/auth/authenticate", "/etcdserverpb.Auth/Authenticate", "AuthenticateRequest", "AuthenticateResponse"),
    unary("/v3/auth/user/add", "/etcdserverpb.Auth/UserAdd", "AuthUserAddRequest", "AuthUserAddResponse"),
    unary("/v3/auth/user/get", "/etcdserverpb.Auth/UserGet", "AuthUserGetRequest", "AuthUserGetResponse"),
    unary("/v3/auth/user/list", "/etcdserverpb.Auth/UserList", "AuthUserListRequest", "AuthUserListResponse"),
    unary("/v3/auth/user/delete", "/etcdserverpb.Auth/UserDelete", "AuthUserDeleteRequest", "AuthUserDeleteResponse"),
    unary(
        "/v3/auth/user/changepw",
        "/etcdserverpb.Auth/UserChangePassword",
        "AuthUserChangePasswordRequest",
        "AuthUserChangePasswordResponse",
    ),
    unary(
        "/v3/auth/user/grant",
        "/etcdserverpb.Auth/UserGrantRole",
        "AuthUserGrantRoleRequest",
        "AuthUserGrantRoleResponse",
    ),
    unary(
        "/v3/auth/user/revoke",
        "/etcdserverpb.Auth/UserRevokeRole",
        "AuthUserRevokeRoleRequest",
        "AuthUserRevokeRoleResponse",
    ),
    unary("/v3/auth/role/add", "/etcdserverpb.Auth/RoleAdd", "AuthRoleAddRequest", "AuthRoleAddResponse"),
    unary("/v3/auth/role/get", "/etcdserverpb.Auth/RoleGet", "AuthRoleGetRequest", "AuthRoleGetResponse"),
    unary("/v3/auth/role/list", "/etcdserverpb.Auth/RoleList", "AuthRoleListRequest", "AuthRoleListResponse"),
    unary("/v3/auth/role/delete", "/etcdserverpb.Auth/RoleDelete", "AuthRoleDeleteRequest", "AuthRoleDeleteResponse"),
    unary(
        "/v3/auth/role/grant",
        "/etcdserverpb.Auth/RoleGrantPermission",
        "AuthRoleGrantPermissionRequest",
        "AuthRoleGrantPermissionResponse",
    ),
    unary(
        "/v3/auth/role/revoke",
        "/etcdserverpb.Auth/RoleRevokePermission",
        "AuthRoleRevokePermissionRequest",
        "AuthRoleRevokePermissionResponse",
    ),
    unary("/v3/election/campaign", "/v3electionpb.Election/Campaign", "CampaignRequest", "CampaignResponse"),
    unary("/v3/election/proclaim", "/v3electionpb.Election/Proclaim", "ProclaimRequest", "ProclaimResponse"),
    unary("/v3/election/leader", "/v3electionpb.Election/Leader", "LeaderRequest", "LeaderResponse"),
    responses("/v3/election/observe", "/v3electionpb.Election/Observe", "LeaderRequest", "LeaderResponse"),
    unary("/v3/election/resign", "/v3electionpb.Election/Resign", "ResignRequest", "ResignResponse"),
    unary("/v3/lock/lock", "/v3lockpb.Lock/Lock", "LockRequest", "LockResponse"),
    unary("/v3/lock/unlock", "/v3lockpb.Lock/Unlock", "UnlockRequest", "UnlockResponse"),
];

/// Returns whether a path belongs to the gateway.
pub(super) fn serves(path: &str) -> bool {
    path.starts_with("/v3/")
}

/// Responds to a request of the gateway.
pub(super) async fn respond(context: &Context, request: Request<Incoming>) -> Result<Response<Body>, CallReset> {
    let Some(route) = ROUTES.iter().find(|route| route.path == request.uri().path()) else {
        return Ok(plain(StatusCode::NOT_FOUND, "text/plain; charset=utf-8", "Not Found\n".to_owned()));
    };
    if request.method() != Method::POST {
        let text = "Method Not Allowed\n".to_owned();
        return Ok(plain(StatusCode::METHOD_NOT_ALLOWED, "text/plain; charset=utf-8", text));
    }
    let (Some(request_type), Some(response_type)) = (schema::message(route.request), schema::message(route.response))
    else {
        return Ok(error_response(&Status::unimplemented(format!("{} has no JSON form", route.call))));
    };
    let (parts, body) = request.into_parts();
    let body = match route.exchange {
        Exchange::Unary | Exchange::Responses => match read_one(body, &request_type).await {
            Ok(message) => Body::new(Full::from(message)),
            Err(status) => return Ok(error_response(&status)),
        },
        Exchange::Bidirectional => stream_requests(body, request_type),
    };
    let mut call = Request::new(body);
    *call.method_mut() = Method::POST;
    *call.uri_mut() = http::Uri::from_static(route.call);
    call.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    if let Some(token) = parts.headers.get(header::AUTHORIZATION) {
        call.headers_mut().insert(header::AUTHORIZATION, token.clone());
    }
    let response = services::respond(context, call).await?;
    if let Some(status) = failure(response.headers()) {
        return Ok(error_response(&status));
    }
    Ok(match route.exchange {
        Exchange::Unary => write_one(response.into_body(), &response_type).await,
        Exchange::Responses | Exchange::Bidirectional => stream_responses(response.into_body(), response_type),
    })
}

/// Reads the only message of a request. An empty body is an empty message.
async fn read_one(body: Incoming, descriptor: &MessageDescriptor) -> Result<Bytes, Status> {
    let collected = Limited::new(body, MAX_JSON).collect().await;
    let json = collected.map_err(|error| Status::invalid_argument(error.to_string()))?.to_bytes();
    if json.iter().all(u8::is_ascii_whitespace) {
        return Ok(framed(&[]));
    }
    let mut values = serde_json::Deserializer::from_slice(&json).into_iter::<Value>();
    let value =
        values.next().unwrap_or(Ok(Value::Null)).map_err(|error| Status::invalid_argument(error.to_string()))?;
    encode(value, descriptor)
}

/// Converts JSON to a message of a gRPC body. Fields that do not exist are ignored, as in real etcd.
fn encode(value: Value, descriptor: &MessageDescriptor) -> Result<Bytes, Status> {
    let options = prost_reflect::DeserializeOptions::new().deny_unknown_fields(false);
    let message = DynamicMessage::deserialize_with_options(descriptor.clone(), value, &options)
        .map_err(|error| Status::invalid_argument(error.to_string()))?;
    Ok(framed(&message.encode_to_vec()))
}

fn framed(message: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(PREFIX + message.len());
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    frame.put_slice(message);
    frame.freeze()
}

/// Converts a stream of JSON objects to the messages of a gRPC body.
fn stream_requests(body: Incoming, descriptor: MessageDescriptor) -> Body {
    let state = (body, BytesMut::new(), descriptor);
    Body::new(StreamBody::new(stream::try_unfold(state, |(mut body, mut buffer, descriptor)| async move {
        loop {
            if let Some(value) = take_value(&mut buffer)? {
                let message = encode(value, &descriptor)?;
                return Ok(Some((Frame::data(message), (body, buffer, descriptor))));
            }
            if buffer.len() > MAX_JSON {
                return Err(Status::invalid_argument(format!("a message has more than {MAX_JSON} bytes")));
            }
            match body.frame().await {
                Some(Ok(frame)) => buffer.extend(frame.into_data().unwrap_or_default()),
                Some(Err(error)) => return Err(Status::unavailable(error.to_string())),
                None => return Ok(None),
            }
        }
    })))
}

/// Removes the first JSON value from a buffer, if it is complete.
fn take_value(buffer: &mut BytesMut) -> Result<Option<Value>, Status> {
    let mut values = serde_json::Deserializer::from_slice(buffer).into_iter::<Value>();
    match values.next() {
        Some(Ok(value)) => {
            let length = values.byte_offset();
            buffer.advance(length);
            Ok(Some(value))
        }
        Some(Err(error)) if !error.is_eof() => Err(Status::invalid_argument(error.to_string())),
        Some(Err(_)) | None => Ok(None),
    }
}

async fn write_one(body: Body, descriptor: &MessageDescriptor) -> Response<Body> {
    let collected = match body.collect().await {
        Ok(collected) => collected,
        Err(status) => return error_response(&status),
    };
    if let Some(status) = collected.trailers().and_then(failure) {
        return error_response(&status);
    }
    let bytes = collected.to_bytes();
    match decode(bytes.slice(PREFIX.min(bytes.len())..), descriptor) {
        Ok(value) => json_response(StatusCode::OK, &value),
        Err(status) => error_response(&status),
    }
}

fn decode(message: Bytes, descriptor: &MessageDescriptor) -> Result<Value, Status> {
    let internal = |error: &dyn std::fmt::Display| Status::internal(error.to_string());
    let message = DynamicMessage::decode(descriptor.clone(), message).map_err(|error| internal(&error))?;
    let options = SerializeOptions::new().use_proto_field_name(true);
    message.serialize_with_options(serde_json::value::Serializer, &options).map_err(|error| internal(&error))
}

/// Converts the messages of a gRPC body to lines of JSON. An error ends the stream with a line of its own.
fn stream_responses(body: Body, descriptor: MessageDescriptor) -> Response<Body> {
    let state = Some((body, BytesMut::new(), descriptor));
    let lines = stream::unfold(state, |state| async move {
        let (mut body, mut buffer, descriptor) = state?;
        loop {
            if let Some(message) = take_message(&mut buffer) {
                return Some(match decode(message, &descriptor) {
                    Ok(value) => (line(&json!({"result": value})), Some((body, buffer, descriptor))),
                    Err(status) => (line(&stream_error(&status)), None),
                });
            }
            match body.frame().await? {
                Ok(frame) => match frame.into_data() {
                    Ok(data) => buffer.extend(data),
                    Err(frame) => {
                        let status = frame.trailers_ref().and_then(failure)?;
                        return Some((line(&stream_error(&status)), None));
                    }
                },
                Err(status) => return Some((line(&stream_error(&status)), None)),
            }
        }
    });
    let mut response = Response::new(Body::new(StreamBody::new(lines)));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Removes the first message from a buffer, if it is complete.
fn take_message(buffer: &mut BytesMut) -> Option<Bytes> {
    let length = buffer.get(1..PREFIX).map(|mut prefix| prefix.get_u32())?;
    let end = PREFIX + usize::try_from(length).ok()?;
    (buffer.len() >= end).then(|| buffer.split_to(end).freeze().slice(PREFIX..))
}

fn line(value: &Value) -> Result<Frame<Bytes>, Status> {
    Ok(Frame::data(format!("{value}\n").into()))
}

/// The error in the headers or trailers of a gRPC response, if it has one.
fn failure(headers: &HeaderMap) -> Option<Status> {
    Status::from_header_map(headers).filter(|status| status.code() != Code::Ok)
}

fn error_response(status: &Status) -> Response<Body> {
    let (text, code) = (status.message(), status.code() as i32);
    json_response(http_status(status.code()), &json!({"error": text, "message": text, "code": code}))
}

fn stream_error(status: &Status) -> Value {
    let http = http_status(status.code());
    json!({"error": {
        "grpc_code": status.code() as i32,
        "http_code": http.as_u16(),
        "message": status.message(),
        "http_status": http.canonical_reason(),
    }})
}

fn json_response(status: StatusCode, value: &Value) -> Response<Body> {
    plain(status, "application/json", value.to_string())
}

/// The HTTP status that a gRPC code is reported with.
fn http_status(code: Code) -> StatusCode {
    match code {
        Code::Ok => StatusCode::OK,
        Code::Cancelled => StatusCode::REQUEST_TIMEOUT,
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => StatusCode::BAD_REQUEST,
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::AlreadyExists | Code::Aborted => StatusCode::CONFLICT,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::Unknown | Code::Internal | Code::DataLoss => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

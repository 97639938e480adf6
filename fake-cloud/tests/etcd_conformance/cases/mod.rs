//! The cases of the conformance suite.

mod auth;
mod elections;
mod gateway;
mod kv;
mod leases;
mod maintenance;
mod members;
mod random;
mod ranges;
mod txns;
mod watches;

use std::future::Future;
use std::pin::Pin;

use super::session::Session;

/// A case makes calls to a server and records the responses in the session.
pub(crate) type Case = fn(Session) -> Pin<Box<dyn Future<Output = Session> + Send>>;

macro_rules! cases {
    ($($module:ident :: $name:ident),* $(,)?) => {
        [$((stringify!($name), |session| Box::pin($module::$name(session)))),*]
    };
}

pub(crate) const CASES: &[(&str, Case)] = &cases![
    kv::new_store_is_at_revision_one,
    kv::put_creates_a_revision,
    kv::put_returns_the_previous_value,
    kv::put_can_keep_value_or_lease,
    kv::invalid_puts_are_rejected,
    kv::delete_without_match_creates_no_revision,
    kv::deleted_key_restarts_at_version_one,
    kv::keys_and_values_may_be_any_bytes,
    kv::large_puts_are_rejected,
    kv::large_requests_of_other_kinds,
    kv::first_of_two_errors_is_returned,
    kv::old_revisions_are_readable_until_compacted,
    kv::invalid_compactions_are_rejected,
    ranges::range_ends,
    ranges::all_sort_targets_and_orders,
    ranges::limit_sets_more,
    ranges::revision_filters_do_not_change_the_count,
    ranges::keys_only_and_count_only,
    ranges::reversed_ranges_are_empty,
    txns::branches_and_revisions,
    txns::all_compares_of_an_existing_key,
    txns::all_compares_of_a_missing_key,
    txns::compares_of_ranges,
    txns::operations_see_earlier_operations,
    txns::nested_txns,
    txns::key_must_not_be_written_twice,
    txns::too_many_operations,
    txns::failed_operation_rejects_the_txn,
    txns::empty_keys_are_rejected,
    leases::lease_grant,
    leases::lease_keep_alive_and_revoke,
    leases::revoked_lease_deletes_its_keys,
    leases::key_moves_to_the_lease_of_its_last_put,
    leases::missing_leases,
    leases::many_keep_alives_on_one_stream,
    leases::leases_in_txns,
    leases::expired_lease_deletes_its_keys_in_one_revision,
    watches::created_precedes_events,
    watches::history_is_one_message,
    watches::watch_of_a_future_revision_waits,
    watches::events_of_one_txn_are_one_message,
    watches::filters_drop_events,
    watches::prev_kv_is_sent_on_request,
    watches::several_watchers_on_one_stream,
    watches::client_chosen_watch_ids,
    watches::reused_watch_id_has_its_own_options,
    watches::history_continues_with_live_events,
    watches::each_progress_request_has_a_response,
    watches::large_delete_is_one_message_per_watcher,
    watches::unusual_watch_ranges,
    watches::progress_on_request,
    watches::watch_of_a_compacted_revision_is_canceled,
    watches::all_kinds_of_watch_ranges,
    watches::long_history_is_sent_in_steps,
    watches::large_messages_are_fragmented_on_request,
    watches::revoked_lease_deletes_keys_in_order,
    random::random_calls,
    elections::leader_proclaims_and_resigns,
    elections::next_candidate_is_elected,
    elections::election_without_a_leader,
    elections::observer_receives_every_leader,
    elections::observer_waits_for_the_first_leader,
    elections::candidate_needs_an_existing_lease,
    elections::lock_has_one_owner,
    elections::waiting_candidate_withdraws,
    elections::lock_fails_if_its_lease_ends_while_waiting,
    members::single_member_cluster,
    members::authentication_is_disabled,
    members::health_and_version_over_http,
    members::unimplemented_calls,
    auth::users_and_roles,
    auth::permissions_of_a_user,
    auth::leases_and_watches_of_a_user,
    auth::administration_needs_the_role_root,
    auth::logins_and_tokens,
    maintenance::hash_of_the_keys,
    maintenance::hash_of_the_database,
    maintenance::alarms,
    maintenance::second_client_sees_the_alarm,
    maintenance::learner_is_added_and_removed,
    maintenance::snapshot_ends_with_its_checksum,
    gateway::json_of_keys,
    gateway::json_of_leases,
    gateway::json_of_users,
    gateway::json_of_the_server,
    gateway::json_watch_streams_events,
];

//! What is compared, by name.

mod elections;
mod kv;
mod leases;
mod members;
mod random;
mod ranges;
mod txns;
mod watches;

use std::future::Future;
use std::pin::Pin;

use super::session::Session;

/// A case talks to a server and returns what it was told.
pub(crate) type Case = fn(Session) -> Pin<Box<dyn Future<Output = Session> + Send>>;

macro_rules! cases {
    ($($module:ident :: $name:ident),* $(,)?) => {
        [$((stringify!($name), |session| Box::pin($module::$name(session)))),*]
    };
}

pub(crate) const CASES: &[(&str, Case)] = &cases![
    kv::a_fresh_store_is_at_revision_one,
    kv::a_put_makes_a_revision,
    kv::a_put_returns_what_was_before_when_asked,
    kv::a_put_can_keep_value_or_lease,
    kv::a_put_without_key_or_with_too_much_is_refused,
    kv::a_delete_makes_a_revision_only_if_something_goes,
    kv::a_deleted_key_begins_anew,
    kv::bytes_are_bytes,
    kv::large_requests_are_refused,
    kv::large_requests_of_every_kind,
    kv::wrong_in_two_ways,
    kv::the_past_can_be_read_until_it_is_compacted,
    kv::compaction_refuses_what_it_cannot_do,
    ranges::ranges_have_ends,
    ranges::every_sort_target_in_every_order,
    ranges::limits_cut_and_say_so,
    ranges::revision_filters_do_not_change_the_count,
    ranges::keys_only_and_count_only,
    ranges::odd_ranges_are_empty_or_refused,
    txns::branches_and_revisions,
    txns::every_compare_on_a_key_that_is_there,
    txns::every_compare_on_a_key_that_is_not_there,
    txns::compares_of_ranges,
    txns::steps_see_the_steps_before,
    txns::nested_transactions,
    txns::a_key_is_written_once,
    txns::too_many_operations,
    txns::one_bad_step_spoils_all,
    txns::keys_must_be_given,
    leases::granting,
    leases::living_and_dying,
    leases::keys_on_leases,
    leases::keys_change_leases,
    leases::unknown_leases,
    leases::many_beats_on_one_stream,
    leases::leases_in_transactions,
    leases::expiry_deletes_all_keys_at_once,
    watches::creation_comes_first_and_events_follow,
    watches::history_comes_in_one_message,
    watches::a_future_revision_is_waited_for,
    watches::events_of_one_transaction_come_together,
    watches::events_can_be_left_out,
    watches::what_was_before_is_told_when_asked,
    watches::many_watchers_on_one_stream,
    watches::ids_of_ones_own,
    watches::an_id_taken_again_brings_its_own_wishes,
    watches::history_goes_over_into_the_present,
    watches::progress_asked_for_many_times,
    watches::a_large_deletion_is_told_at_once,
    watches::odd_ranges,
    watches::progress_on_request,
    watches::compacted_revisions_cannot_be_watched,
    watches::all_shapes_of_ranges,
    watches::a_long_history,
    watches::large_messages_come_in_pieces_when_asked,
    watches::revoked_leases_tell_of_all_keys_in_order,
    random::long_conversations_about_anything,
    elections::a_leader_is_elected_proclaims_and_resigns,
    elections::the_next_in_line_follows,
    elections::nobody_leads,
    elections::observers_see_every_leader,
    elections::an_observer_waits_for_the_first_leader,
    elections::candidates_need_a_lease_that_lives,
    elections::locks_are_held_by_one,
    elections::somebody_in_the_middle_of_the_line_goes,
    elections::a_lease_ends_in_line_for_a_lock,
    members::a_cluster_of_one,
    members::nobody_needs_a_password,
    members::health_and_version_over_plain_http,
    members::calls_that_are_not_there,
];

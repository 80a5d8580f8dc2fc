//! What can be seen from outside: `tracing` events under the target `fencelock`, and counters through the `metrics` facade.
//! Both cost next to nothing when nobody listens. Names never become labels: there may be millions of them.

use crate::error::{Error, spoken};
use crate::hold::{Hold, Loss};
use std::time::Duration;

/// The span of one acquisition.
pub(crate) fn acquiring(name: &crate::name::Name, kind: crate::store::Kind) -> tracing::Span {
    tracing::debug_span!(target: "fencelock", "acquire", %name, mode = %kind.mode())
}

/// Joined the queue.
pub(crate) fn waiting(name: &crate::name::Name, token: Option<u64>) {
    tracing::debug!(target: "fencelock", %name, token, "waiting");
    metrics::counter!("fencelock_queued_total").increment(1);
}

/// It is ours.
pub(crate) fn acquired(hold: &Hold, waited: Duration) {
    tracing::debug!(target: "fencelock", name = %hold.name, token = hold.number(), mode = %hold.kind.mode(), waited = ?waited, "acquired");
    metrics::counter!("fencelock_acquired_total").increment(1);
    metrics::histogram!("fencelock_wait_seconds").record(waited.as_secs_f64());
}

/// A waiter's ticket was gone; it starts again at the end of the queue.
pub(crate) fn queued_again(name: &crate::name::Name) {
    tracing::warn!(target: "fencelock", %name, "our place in the queue was gone; queueing again at its end");
    metrics::counter!("fencelock_queued_again_total").increment(1);
}

/// A batch was renewed.
pub(crate) fn renewed(tickets: usize) {
    tracing::trace!(target: "fencelock", tickets, "renewed");
    metrics::counter!("fencelock_renewed_total").increment(tickets as u64);
    metrics::counter!("fencelock_renewal_calls_total").increment(1);
}

/// A ticket that was in jeopardy is safe again.
pub(crate) fn renewed_late(hold: &Hold) {
    tracing::info!(target: "fencelock", name = %hold.name, token = hold.number(), "renewed late: safe again");
    metrics::counter!("fencelock_renewed_late_total").increment(1);
}

/// A batch was not renewed: its guards are in jeopardy.
pub(crate) fn renewal_failed(error: &Error, tickets: usize) {
    tracing::warn!(target: "fencelock", tickets, %error, "jeopardy: a renewal failed; trying again until the deadline");
    metrics::counter!("fencelock_renewals_failed_total").increment(1);
}

/// No longer ours.
pub(crate) fn lost(hold: &Hold) {
    let why = match hold.loss() {
        Some(Loss::Gone) => "gone",
        Some(Loss::Ended) => "ended",
        _ => "unrenewed",
    };
    tracing::warn!(target: "fencelock", name = %hold.name, token = hold.number(), why, lease = %spoken(hold.terms.lease), "lost");
    metrics::counter!("fencelock_lost_total", "why" => why).increment(1);
}

/// Let go.
pub(crate) fn released(hold: &Hold) {
    tracing::debug!(target: "fencelock", name = %hold.name, token = hold.number(), "released");
    metrics::counter!("fencelock_released_total").increment(1);
}

/// A release in the background failed.
pub(crate) fn release_failed(error: &Error, tickets: usize) {
    tracing::warn!(target: "fencelock", tickets, %error, "a release failed; trying again until the lease has ended");
    metrics::counter!("fencelock_releases_failed_total").increment(1);
}

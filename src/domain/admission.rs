//! Admission: what may leave a queue now, or why nothing may, and until when. One function of the facts, the same for every engine
//! and server. What is counted over all servers, leases and tokens, the engines compare with it as they take.

use super::breaker::{Breaker, BreakerState};
use super::ids::JobId;
use super::max_rate::MaxRate;
use super::pause::Pause;
use super::rate::Rate;
use super::settings::BreakerSettings;
use super::time::Timestamp;

/// What jobs pass on their way out: of a queue as a whole, or of those that share a breaker.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gate<'a> {
    pub pause: Option<&'a Pause>,
    pub guard: Option<Guard<'a>>,
    pub max_in_flight: Option<u64>,
    pub max_rate: Option<MaxRate>,
}

/// A breaker as it stands.
#[derive(Clone, Copy, Debug)]
pub struct Guard<'a> {
    pub breaker: &'a Breaker,
    pub settings: &'a BreakerSettings,
    /// What a success has taken lately.
    pub took_ms: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Admission<'a> {
    /// Jobs may leave, within this.
    Jobs(Allowed<'a>),
    /// None may. `until`: unknown while an operator holds them.
    Held { by: HeldBy, until: Option<Timestamp> },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldBy {
    Pause,
    Breaker,
    /// All that may be out are; one of them is given up then.
    Probes,
    MaxInFlight,
    MaxRate,
    /// The load after an outage, or its pace.
    Load,
}

/// How many jobs may leave: nothing that stands here, all.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Allowed<'a> {
    /// So many leased at once.
    pub leased: Option<u64>,
    pub rate: Option<Rate>,
    /// While RECOVERING: the pace of hand-outs.
    pub ramp: Option<Rate>,
    /// While HALF_OPEN.
    pub probes: Option<Probes<'a>>,
}

/// So many, and this one only if there is no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probes<'a> {
    pub most: u64,
    pub not_first: Option<&'a JobId>,
}

/// What was counted of the jobs that passed a gate.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measured {
    /// Leased now.
    pub leased: u64,
    /// Of its rate and of its ramp, and when they were counted. None: no job has left under one.
    pub tokens: Option<f64>,
    pub ramp_tokens: Option<f64>,
    pub at: Timestamp,
}

impl Allowed<'_> {
    /// What of this lets out no more now, and until when. Of several the last one to let go: a lease may end at any time.
    pub fn held_by(&self, measured: &Measured, now: Timestamp) -> Option<(HeldBy, Option<Timestamp>)> {
        let by = if self.ramp.is_some() { HeldBy::Load } else { HeldBy::MaxInFlight };
        let full = self.leased.filter(|most| measured.leased >= *most).map(|_| (by, None));
        let elapsed = now.since(measured.at).as_millis() as u64;
        let empty = |by, rate: Option<Rate>, tokens: Option<f64>| {
            let rate = rate?;
            let tokens = rate.refilled(tokens?, elapsed);
            (Rate::whole(tokens) == 0).then(|| (by, rate.next_at(tokens, now)))
        };
        let rate = empty(HeldBy::MaxRate, self.rate, measured.tokens);
        let ramp = empty(HeldBy::Load, self.ramp, measured.ramp_tokens);
        full.into_iter().chain(rate).chain(ramp).max_by_key(|(_, until)| until.unwrap_or(Timestamp::MAX))
    }
}

impl Admission<'_> {
    /// How many jobs may leave at once.
    pub fn limit(self) -> usize {
        let Self::Jobs(Allowed { leased, probes, .. }) = self else { return 0 };
        let limits = leased.into_iter().chain(probes.map(|probes| probes.most));
        limits.min().and_then(|least| usize::try_from(least).ok()).unwrap_or(usize::MAX)
    }
}

impl<'a> Gate<'a> {
    /// `probes`: when those that are out were handed out.
    pub fn admission(&self, probes: impl Iterator<Item = Timestamp>, now: Timestamp) -> Admission<'a> {
        if let Some(pause) = self.pause.filter(|pause| pause.holds(now)) {
            return Admission::Held { by: HeldBy::Pause, until: pause.until };
        }
        let rate = self.max_rate.map(|max_rate| max_rate.rate());
        let allowed = Allowed { leased: self.max_in_flight, rate, ..Allowed::default() };
        match self.guard {
            Some(guard) => guard.admission(allowed, probes, now),
            None => Admission::Jobs(allowed),
        }
    }
}

impl<'a> Guard<'a> {
    /// `allowed`: by the limits of these jobs.
    fn admission(self, allowed: Allowed<'a>, probes: impl Iterator<Item = Timestamp>, now: Timestamp) -> Admission<'a> {
        let Self { breaker, settings, took_ms } = self;
        match (breaker.state(settings, now), &breaker.outage) {
            (BreakerState::Closed, _) => Admission::Jobs(allowed),
            (BreakerState::Recovering, Some(outage)) => {
                let leased = outage.recovery.leased();
                let leased = allowed.leased.map_or(leased, |most| most.min(leased));
                let ramp = Some(outage.recovery.pace(took_ms));
                Admission::Jobs(Allowed { leased: Some(leased), ramp, ..allowed })
            }
            (BreakerState::HalfOpen, Some(outage)) => {
                let (out, until) = probes_out(settings, probes, now);
                let most = u64::from(settings.half_open_max_calls).saturating_sub(out);
                if most == 0 {
                    return Admission::Held { by: HeldBy::Probes, until: Some(until) };
                }
                let probes = Some(Probes { most, not_first: outage.failed_probe.as_ref() });
                Admission::Jobs(Allowed { probes, ..allowed })
            }
            (_, outage) => {
                let until = outage.as_ref().filter(|_| breaker.forced.is_none());
                Admission::Held { by: HeldBy::Breaker, until: until.map(|outage| outage.probe_at) }
            }
        }
    }
}

/// How many probes have a slot, by when they were handed out, and when the first of them loses it.
pub fn probes_out(
    settings: &BreakerSettings, probes: impl Iterator<Item = Timestamp>, now: Timestamp,
) -> (u64, Timestamp) {
    let ends = probes.map(|started| started.after(settings.recovery_timeout));
    let waited_for = ends.filter(|end| *end > now);
    waited_for.fold((0, Timestamp::MAX), |(out, until), end| (out + 1, until.min(end)))
}

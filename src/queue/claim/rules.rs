//! What may leave a queue now, as rules of a take, or why nothing may.

use super::{PROMOTIONS_MAX, RULES_MAX, Taking};
use crate::domain::{Admission, Allowed, HeldBy, JobId, PATIENCE, Timestamp, millis_ceil};
use crate::queue::IdleReason;
use crate::queue::answers::{ask, by_name, first_of};
use crate::queue::breaker_keys;
use crate::queue::facts::QueueFacts;
use crate::queue::records;
use crate::store::Result;
use crate::store::storage::{
    Batch, Entry, Found, GroupState, Index, Len, Member, NO_GROUP, Probes, Ramp, Read, Rule, Storage, Table, Taken,
    WHOLE_QUEUE, Write, flag,
};
use std::collections::HashSet;

/// Why nothing leaves a queue.
#[derive(Clone, Debug)]
pub(super) struct Why {
    pub(super) reason: IdleReason,
    /// Where that is known.
    pub(super) until: Option<Timestamp>,
    /// The breaker key whose jobs wait for it.
    pub(super) key: String,
}

impl Why {
    pub(super) fn new(reason: IdleReason, until: Option<Timestamp>) -> Self {
        Self { reason, until, key: String::new() }
    }
}

impl<S: Storage> Taking<'_, '_, '_, S> {
    /// Why nothing leaves the queue, to a claim that wants no jobs.
    pub(super) async fn why_idle(&mut self) -> Result<Why> {
        let Some(facts) = QueueFacts::read_anew(self.store, self.queue, NO_GROUP, self.cx).await? else {
            return Ok(Why::new(IdleReason::NoSuchQueue, None));
        };
        let now = self.store.now();
        let held = match facts.admission(&self.settings, now) {
            Admission::Held { by: by @ (HeldBy::Pause | HeldBy::Breaker), until } => {
                return Ok(Why::new(reason(by), until));
            }
            Admission::Held { by, until } => Some(Why::new(reason(by), until)),
            Admission::Jobs(_) => None,
        };
        let writes = vec![Write::Promote(PROMOTIONS_MAX)];
        self.store.apply(self.queue, &Batch { writes, ..Batch::default() }).await?;
        if let Some(held) = held.or(self.limited(&facts, now).await?) {
            return Ok(held);
        }
        let reads = [first_of(Index::Scheduled, 1), first_of(Index::Retrying, 1)];
        let found = ask(self.store, self.queue, &reads).await?;
        let due = found.flat_map(Found::entries).map(|entry| entry.score).min();
        Ok(match due {
            Some(at) => Why::new(IdleReason::NotDue, Some(Timestamp::from_millis(at))),
            None => Why::new(IdleReason::Empty, None),
        })
    }

    /// The limit that holds what is ready, of the queue or of its jobs without a breaker key: of several the last to let go.
    async fn limited(&mut self, facts: &QueueFacts, now: Timestamp) -> Result<Option<Why>> {
        let length = |index| Read::Len(Len::Index(index));
        let lengths = [Index::Ready, Index::Keyed, Index::Leased].map(length);
        let meters = [WHOLE_QUEUE, NO_GROUP].map(Read::Meter);
        let mut found = ask(self.store, self.queue, &[&lengths[..], &meters[..]].concat()).await?;
        let (ready, keyed, leased) = (found.number(), found.number(), found.number());
        let gates = [(ready + keyed, facts.whole_gate(&self.settings)), (ready, facts.gate(&self.settings))];
        let mut bound = Vec::new();
        for (ready, gate) in gates {
            let measured = breaker_keys::measured(leased, &mut found);
            if let Admission::Jobs(allowed) = gate.admission(std::iter::empty(), now)
                && ready > 0
            {
                bound.extend(allowed.held_by(&measured, now));
            }
        }
        let last = bound.into_iter().max_by_key(|(_, until)| until.unwrap_or(Timestamp::MAX));
        Ok(last.map(|(by, until)| Why::new(reason(by), until)))
    }

    /// What may leave the queue now: of all of it, and by groups; and what holds the jobs without a breaker key. Or why nothing
    /// may. `asked_for`: groups that must have a rule.
    pub(super) async fn rules(
        &mut self, facts: &QueueFacts, asked_for: &[u16], now: Timestamp,
    ) -> Result<Result<(Rule, Vec<Rule>, Option<Why>), Why>> {
        let settings = self.settings.clone();
        let whole = match facts.whole_gate(&settings).admission(std::iter::empty(), now) {
            Admission::Held { by, until } => return Ok(Err(Why::new(reason(by), until))),
            Admission::Jobs(allowed) => self.within(Rule::whole(facts.whole), allowed, now).await?,
        };
        let own = self.rule(facts, now).await?;
        if facts.keys == 0 || facts.holds_all(now) {
            return Ok(own.map(|rule| (whole, vec![rule], None)));
        }
        let (own, held) = match own {
            Ok(rule) => (rule, None),
            Err(why) => (Rule { leased: Some(0), ..free_rule(facts) }, Some(why)),
        };
        let mut rules = vec![own];
        let mut keys = breaker_keys::remembered(self.store, self.cx, self.queue).await?;
        // Those that a take has passed over come first, then those that are looked at for a rule alone: held ones, which may want a
        // probe. Of more than one take has rules for, others come each time.
        let first = self.cx.rng.next_u64() as usize % keys.len().max(1);
        keys.rotate_left(first);
        keys.sort_by_key(|facts| (!asked_for.contains(&facts.group), facts.version.state != GroupState::Held));
        for facts in keys {
            if rules.len() > RULES_MAX {
                break;
            }
            if let Ok(rule) = self.rule(&facts, now).await? {
                rules.push(rule);
            }
        }
        Ok(Ok((whole, rules, held)))
    }

    /// What of one group may leave now, or why nothing may. `take` looks which probes are out.
    async fn rule(&mut self, facts: &QueueFacts, now: Timestamp) -> Result<Result<Rule, Why>> {
        let settings = self.settings.clone();
        Ok(match facts.gate(&settings).admission(std::iter::empty(), now) {
            Admission::Held { by, until } => Err(Why { key: facts.breaker.key.clone(), ..Why::new(reason(by), until) }),
            Admission::Jobs(allowed) => Ok(self.within(free_rule(facts), allowed, now).await?),
        })
    }

    /// Looks at groups that a take reported: their rules were old, or they need one. Those that are to have one now; of each group
    /// once in a claim.
    pub(super) async fn look_at_groups(&mut self, changed: &[u16], ruled: &mut HashSet<u16>) -> Result<Vec<u16>> {
        let mut asked_for = Vec::new();
        for group in changed.iter().filter(|group| !matches!(**group, NO_GROUP | WHOLE_QUEUE)) {
            if asked_for.len() >= RULES_MAX || !ruled.insert(*group) {
                continue;
            }
            // A queue whose groups were not looked for yet is looked at whole.
            breaker_keys::remembered(self.store, self.cx, self.queue).await?;
            QueueFacts::read_anew(self.store, self.queue, *group, self.cx).await?;
            asked_for.push(*group);
        }
        if !asked_for.is_empty() && self.cx.memory.facts(self.queue).is_none_or(|facts| facts.keys == 0) {
            self.cx.memory.forget_facts(self.queue);
        }
        Ok(asked_for)
    }

    /// Why there was nothing more.
    pub(super) async fn idle(&mut self, facts: &QueueFacts, taken: &Taken) -> Result<Why> {
        // Of several that bind, the last one to let go.
        let bound = taken.stops.iter().max_by_key(|stop| stop.until.unwrap_or(Timestamp::MAX));
        if let Some(stop) = bound {
            let keys = self.cx.memory.keys(self.queue).unwrap_or_default();
            let key = keys.iter().find(|facts| facts.group == stop.group).map(|facts| facts.breaker.key.clone());
            return Ok(Why { key: key.unwrap_or_default(), ..Why::new(IdleReason::Limited, stop.until) });
        }
        if taken.leases_full {
            return Ok(Why::new(IdleReason::Limited, None));
        }
        if facts.keys > 0 && taken.jobs.is_empty() {
            // Ready jobs that are left are those of a key that is held.
            let first = ask(self.store, self.queue, &[first_of(Index::Keyed, 1)]).await?.entries().pop();
            let keys = self.cx.memory.keys(self.queue).unwrap_or_default();
            let of = |group| keys.iter().find(|facts| facts.group == group);
            if let Some(Entry { member: Member::Position(position), .. }) = first
                && let Some(facts) = of(position.group)
                && let Err(why) = self.rule(&facts.clone(), self.store.now()).await?
            {
                return Ok(why);
            }
        }
        Ok(match taken.next_due {
            Some(due) => Why::new(IdleReason::NotDue, Some(due)),
            None => Why::new(IdleReason::Empty, None),
        })
    }

    /// A rule with these limits.
    async fn within(&mut self, mut rule: Rule, allowed: Allowed<'_>, now: Timestamp) -> Result<Rule> {
        rule.leased = allowed.leased;
        rule.rate = allowed.rate;
        if let Some(rate) = allowed.ramp {
            rule.ramp = Some(Ramp { rate, patience_ms: millis_ceil(PATIENCE) });
            rule.flags |= flag::RAMP;
        }
        if let Some(probes) = allowed.probes {
            let back = millis_ceil(self.settings.breaker.recovery_timeout);
            let started_after = Timestamp::from_millis(now.millis().saturating_sub(back));
            rule.probes = Some(Probes { most: probes.most, started_after });
            rule.flags |= flag::PROBE;
            if let Some(id) = probes.not_first {
                rule.pass_over = self.number_of(id).await?;
            }
        }
        Ok(rule)
    }

    /// The number of the job that has this id.
    async fn number_of(&mut self, id: &JobId) -> Result<Option<u64>> {
        let own = ask(self.store, self.queue, &[by_name(Table::Id, id.to_string())]).await?.parse(records::read_id)?;
        Ok(own.map(|own| own.number).or_else(|| id.number()))
    }
}

fn reason(by: HeldBy) -> IdleReason {
    match by {
        HeldBy::Pause => IdleReason::Paused,
        HeldBy::Breaker => IdleReason::BreakerOpen,
        HeldBy::Probes | HeldBy::MaxInFlight | HeldBy::MaxRate | HeldBy::Load => IdleReason::Limited,
    }
}

/// It lets everything of the group through.
fn free_rule(facts: &QueueFacts) -> Rule {
    Rule { group: facts.group, version: facts.version, ..Rule::default() }
}

//! What comes with a call: settings, randomness, what this process remembers of the queues, and the events to tell.

use super::claimed_bytes::ClaimedBytes;
use super::events::{BreakerEvent, Event, EventKind, Wanted};
use super::facts::QueueFacts;
use super::new_queues::NewQueues;
use super::refusal::Refusal;
use crate::domain::{Breaker, BreakerKind, BreakerName, QueueName, QueueSettings, Rng, Settings, Timestamp};
use crate::lock::lock;
use crate::queue::BreakerView;
use crate::store::StoreError;
use crate::store::storage::{GroupState, NO_GROUP, Version, epoch_of};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// Bounds of a store.
#[derive(Clone, Copy, Debug)]
pub struct StoreLimits {
    pub queues: usize,
    pub leases: usize,
    /// Keys of jobs that are done, of a queue; the sweep forgets the oldest beyond it.
    pub finished_keys: u64,
}

impl StoreLimits {
    /// On every engine.
    pub const FINISHED_KEYS: u64 = 1_000_000;
}

/// A little longer than a bucket.
const BUCKET_LOOKED_AT_EVERY: Duration = Duration::from_millis(5_100);
/// What other servers do to breaker keys is seen so late at most, where no hint tells of it.
const KEYS_SEEN_EVERY: Duration = Duration::from_millis(500);

/// What this process remembers of the queues. All of it may be lost: fences notice what is old.
#[derive(Debug, Default)]
pub struct QueueMemory {
    queues: Mutex<HashMap<QueueName, Remembered>>,
    pub(crate) claimed: ClaimedBytes,
    pub(crate) new_queues: NewQueues,
    last_claims: Mutex<LastClaims>,
}

/// When workers of this process last asked for queues. Of names that are no queues it knows some: each may be a typing error.
#[derive(Debug, Default)]
struct LastClaims {
    by_queue: HashMap<QueueName, Claimed>,
    /// Of these, those that were no queues.
    others: usize,
    /// Since when they are not known to other processes.
    published: Timestamp,
    /// When room was last looked for.
    tidied: Timestamp,
}

#[derive(Clone, Copy, Debug)]
struct Claimed {
    at: Timestamp,
    is_queue: bool,
}

/// Names that are remembered; where there are more, those make room, once a minute, that no worker has asked for in an hour.
const CLAIMED_NAMES_MAX: usize = 20_000;
const OTHER_NAMES_MAX: usize = 1_000;
const CLAIMED_WITHIN: Duration = Duration::from_secs(3600);
const TIDY_CLAIMS_EVERY: Duration = Duration::from_secs(60);

impl LastClaims {
    fn note(&mut self, queue: &QueueName, is_queue: bool, now: Timestamp) {
        let full =
            |claims: &Self| claims.by_queue.len() >= CLAIMED_NAMES_MAX || !is_queue && claims.others >= OTHER_NAMES_MAX;
        if full(self) && now.since(self.tidied) >= TIDY_CLAIMS_EVERY {
            self.tidied = now;
            self.by_queue.retain(|_, claimed| now.since(claimed.at) < CLAIMED_WITHIN);
            self.others = self.by_queue.values().filter(|claimed| !claimed.is_queue).count();
        }
        if !full(self) {
            self.others += usize::from(!is_queue);
            self.by_queue.insert(queue.clone(), Claimed { at: now, is_queue });
        }
    }
}

#[derive(Debug, Default)]
struct Remembered {
    facts: Option<Arc<QueueFacts>>,
    /// The groups of breaker keys that are not free, as they were last seen. None: nothing has looked for them yet.
    keys: Option<BTreeMap<u16, Arc<QueueFacts>>>,
    /// When that was.
    keys_seen_at: Timestamp,
    /// By group, the transition count after which HALF_OPEN was published.
    told_half_open: HashMap<u16, u64>,
    /// By group, when the bucket of its outcomes is looked at next; none: not yet.
    bucket_at: HashMap<u16, Timestamp>,
    /// Groups of breaker keys whose buckets are due.
    buckets_due: BTreeSet<u16>,
    /// The settings that their versions fit.
    keys_fit: Option<Arc<QueueSettings>>,
    /// When they were last looked at for those that are idle.
    keys_tidied_at: Timestamp,
    /// A take found no room for leases.
    leases_full: bool,
}

impl QueueMemory {
    pub(crate) fn new(new_queues_per_minute: usize) -> Self {
        Self { new_queues: NewQueues::of(new_queues_per_minute), ..Self::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<QueueName, Remembered>> {
        lock(&self.queues)
    }

    pub(crate) fn facts(&self, queue: &QueueName) -> Option<Arc<QueueFacts>> {
        self.lock().get(queue)?.facts.clone()
    }

    pub(crate) fn remember(&self, queue: &QueueName, facts: Arc<QueueFacts>) {
        let mut queues = self.lock();
        let remembered = queues.entry(queue.clone()).or_default();
        if facts.group == NO_GROUP {
            remembered.facts = Some(facts);
        } else if let Some(keys) = &mut remembered.keys {
            match facts.version.state {
                GroupState::Free => drop(keys.remove(&facts.group)),
                GroupState::NeedsRule | GroupState::Held => drop(keys.insert(facts.group, facts)),
            }
        }
    }

    /// The groups of breaker keys that are not free, as far as this process knows; none: it does not know.
    pub(crate) fn keys(&self, queue: &QueueName) -> Option<Vec<Arc<QueueFacts>>> {
        self.lock().get(queue)?.keys.as_ref().map(|keys| keys.values().cloned().collect())
    }

    pub(crate) fn remember_keys(&self, queue: &QueueName, keys: Vec<Arc<QueueFacts>>, now: Timestamp) {
        let mut queues = self.lock();
        let remembered = queues.entry(queue.clone()).or_default();
        remembered.keys = Some(keys.into_iter().map(|facts| (facts.group, facts)).collect());
        remembered.keys_seen_at = now;
    }

    /// They were seen long enough ago to be looked for again.
    pub(crate) fn keys_are_old(&self, queue: &QueueName, now: Timestamp) -> bool {
        let queues = self.lock();
        queues.get(queue).is_none_or(|it| it.keys.is_none() || now.since(it.keys_seen_at) >= KEYS_SEEN_EVERY)
    }

    /// The same for all queues: what was remembered may not have happened.
    pub(crate) fn forget_all_facts(&self) {
        self.lock().values_mut().for_each(|remembered| (remembered.facts, remembered.keys) = (None, None));
    }

    /// What holds a queue back may have changed.
    pub(crate) fn forget_facts(&self, queue: &QueueName) {
        if let Some(remembered) = self.lock().get_mut(queue) {
            remembered.facts = None;
        }
    }

    /// The queue is no more.
    pub(crate) fn forget(&self, queue: &QueueName) {
        self.lock().remove(queue);
    }

    /// Queues whose breakers are not at rest: other settings may let jobs out of them.
    pub(crate) fn guarded(&self) -> Vec<QueueName> {
        let queues = self.lock();
        let own = |it: &Remembered| it.facts.as_ref().is_some_and(|facts| !facts.breaker.is_closed());
        let keyed = |it: &Remembered| it.keys.as_ref().is_some_and(|keys| !keys.is_empty());
        let guarded = queues.iter().filter(|(_, remembered)| own(remembered) || keyed(remembered));
        guarded.map(|(name, _)| name.clone()).collect()
    }

    /// Nothing leaves the queue, as far as this process knows.
    pub(crate) fn is_held(&self, queue: &QueueName) -> bool {
        self.facts(queue).is_some_and(|facts| {
            let recovers = facts.breaker.outage.as_ref().is_some_and(|outage| outage.recovering);
            let others = facts.keys > 0 && facts.breaker.forced.is_none();
            facts.queue.pause.is_some() || !facts.breaker.is_closed() && !recovers && !others
        })
    }

    fn last_claims(&self) -> MutexGuard<'_, LastClaims> {
        lock(&self.last_claims)
    }

    /// Workers ask for these queues.
    pub(crate) fn claimed<'q>(&self, queues: impl Iterator<Item = &'q QueueName>, now: Timestamp) {
        let mut claims = self.last_claims();
        for queue in queues {
            match claims.by_queue.get_mut(queue) {
                Some(claimed) => claimed.at = now.max(claimed.at),
                None => {
                    let is_queue = self.lock().contains_key(queue);
                    claims.note(queue, is_queue, now);
                }
            }
        }
    }

    pub(crate) fn last_claim(&self, queue: &QueueName) -> Option<Timestamp> {
        self.last_claims().by_queue.get(queue).map(|claimed| claimed.at)
    }

    pub(crate) fn claimed_queues(&self) -> Vec<QueueName> {
        self.last_claims().by_queue.keys().cloned().collect()
    }

    /// Those that are new since this was last asked.
    pub(crate) fn new_claims(&self, now: Timestamp) -> Vec<(QueueName, Timestamp)> {
        let mut claims = self.last_claims();
        let before = std::mem::replace(&mut claims.published, now);
        let new = claims.by_queue.iter().filter(|(_, claimed)| claimed.at >= before);
        new.map(|(queue, claimed)| (queue.clone(), claimed.at)).collect()
    }

    pub(crate) fn half_open_announced(&self, queue: &QueueName, group: u16) -> u64 {
        self.lock().get(queue).and_then(|remembered| remembered.told_half_open.get(&group)).copied().unwrap_or(0)
    }

    pub(crate) fn tell_half_open(&self, queue: &QueueName, group: u16, transitions: u64) {
        self.lock().entry(queue.clone()).or_default().told_half_open.insert(group, transitions);
    }

    /// Whether the outcomes of a group that succeeds all the time are to be looked at: about as often as a bucket of them ends.
    pub(crate) fn bucket_is_due(&self, queue: &QueueName, group: u16, now: Timestamp) -> bool {
        let mut queues = self.lock();
        let Some(remembered) = queues.get_mut(queue) else { return false };
        let due = remembered.bucket_at.get(&group).is_none_or(|at| *at <= now);
        if due {
            remembered.bucket_at.insert(group, now.after(BUCKET_LOOKED_AT_EVERY));
            if group != NO_GROUP {
                remembered.buckets_due.insert(group);
            }
        }
        due
    }

    /// The groups of breaker keys whose buckets became due since this was last asked.
    pub(crate) fn take_buckets_due(&self, queue: &QueueName) -> BTreeSet<u16> {
        self.lock().get_mut(queue).map(|remembered| std::mem::take(&mut remembered.buckets_due)).unwrap_or_default()
    }

    /// Whether the versions of breaker keys may not fit these settings yet; from now on they do.
    pub(crate) fn fits_keys(&self, queue: &QueueName, settings: &Arc<QueueSettings>) -> bool {
        let mut queues = self.lock();
        let fit = &mut queues.entry(queue.clone()).or_default().keys_fit;
        let before = fit.replace(settings.clone());
        !before.is_some_and(|before| Arc::ptr_eq(&before, settings))
    }

    /// Whether its breaker keys are to be looked at for those that are idle.
    pub(crate) fn keys_are_due(&self, queue: &QueueName, every: Duration, now: Timestamp) -> bool {
        let mut queues = self.lock();
        let tidied_at = &mut queues.entry(queue.clone()).or_default().keys_tidied_at;
        let due = now.since(*tidied_at) >= every;
        if due {
            *tidied_at = now;
        }
        due
    }

    pub(crate) fn leases_are_full(&self, queue: &QueueName) {
        self.lock().entry(queue.clone()).or_default().leases_full = true;
    }

    /// The queues whose takes found no room for leases since this was last asked.
    pub(crate) fn take_full(&self) -> HashSet<QueueName> {
        let mut queues = self.lock();
        let full = queues
            .iter_mut()
            .filter_map(|(name, remembered)| std::mem::take(&mut remembered.leases_full).then(|| name.clone()));
        full.collect()
    }
}

/// One call on its way through the queue.
#[derive(Debug)]
pub struct CallContext<'a> {
    pub(crate) settings: Arc<Settings>,
    pub(crate) rng: Rng,
    pub(crate) memory: &'a QueueMemory,
    pub(crate) limits: StoreLimits,
    pub(crate) wanted: Wanted,
    /// A batch of the call was applied: where it fails, it is not known how far it is.
    pub(crate) begun: bool,
    /// To be published after the commit, in this order.
    pub events: Vec<Event>,
    /// So many of them are of batches that were applied.
    pub(crate) certain: usize,
}

impl<'a> CallContext<'a> {
    /// A queue that is not there is about to be made by a call.
    pub(crate) fn make_queue(&self, queue: &QueueName, now: Timestamp) -> Result<(), Refusal> {
        if self.settings.queues.contains_key(queue) { Ok(()) } else { self.memory.new_queues.make(now) }
    }

    pub fn new(settings: Arc<Settings>, seed: u64, memory: &'a QueueMemory, limits: StoreLimits) -> Self {
        let (rng, wanted) = (Rng::new(seed), Wanted::ALL);
        Self { settings, rng, memory, limits, wanted, begun: false, events: Vec::new(), certain: 0 }
    }

    /// A batch was applied, with all that it tells.
    pub(crate) fn applied(&mut self) {
        self.begun = true;
        self.certain = self.events.len();
    }

    /// The call has failed: what its last batch would have told did not happen, as far as is known. That jobs are there, or due,
    /// is found to be so or not by those who look.
    pub(crate) fn failed(&mut self) {
        let told = self.events.split_off(self.certain.min(self.events.len()));
        self.events
            .extend(told.into_iter().filter(|event| matches!(event, Event::Available { .. } | Event::Due { .. })));
    }

    pub(crate) fn queue(&self, name: &QueueName) -> Arc<QueueSettings> {
        self.settings.queue(name).clone()
    }

    /// So many jobs of a queue are ready: as many as may leave it are available.
    pub(crate) fn available(&mut self, queue: &QueueName, facts: &QueueFacts, ready: u64, now: Timestamp) {
        let limit = match facts.keys {
            _ if facts.holds_all(now) => 0,
            0 => facts.admission(self.settings.queue(queue), now).limit(),
            // Each group has an admission of its own, and the engine counts only if one of them is not held.
            _ => usize::MAX,
        };
        let jobs = limit.min(usize::try_from(ready).unwrap_or(usize::MAX));
        if jobs > 0 {
            self.events.push(Event::Available { queue: queue.clone(), jobs });
        }
    }

    pub(crate) fn due(&mut self, queue: &QueueName, at: Timestamp) {
        self.events.push(Event::Due { queue: queue.clone(), at, job: false });
    }

    pub(crate) fn job_due(&mut self, queue: &QueueName, at: Timestamp) {
        self.events.push(Event::Due { queue: queue.clone(), at, job: true });
    }

    /// A lease has ended: queues whose takes found no room for one may go on.
    pub(crate) fn lease_ended(&mut self) {
        for queue in self.memory.take_full() {
            self.events.push(Event::Available { queue, jobs: 1 });
        }
    }

    pub(crate) fn breaker_moved(&mut self, queue: &QueueName, kind: BreakerKind, view: BreakerView, now: Timestamp) {
        if self.wanted.has(EventKind::Breaker) {
            let name = BreakerName { queue: queue.clone(), kind, key: view.breaker.key.clone() };
            let settings = self.settings.breaker(&name);
            let (state, probe_at) = (view.breaker.state(settings, now), view.breaker.probe_at(settings, now));
            self.events.push(Event::Breaker(Box::new(BreakerEvent { name, state, probe_at, at: now, view })));
        }
    }

    /// A version that no other has.
    pub(crate) fn new_version(&mut self, queue: &QueueName, group: u16, breaker: &Breaker) -> Version {
        let limits = self.settings.queue(queue).limits_of_key(&breaker.key);
        let state = match group {
            NO_GROUP if breaker.is_closed() => GroupState::Free,
            NO_GROUP => GroupState::NeedsRule,
            _ if breaker.lets_all_out() && limits.is_none() => GroupState::Free,
            _ if breaker.lets_all_out() || breaker.recovery().is_some() => GroupState::NeedsRule,
            // Its jobs wait without being looked at, however many they are.
            _ => GroupState::Held,
        };
        let random = (self.rng.next_u64() | 1).to_be_bytes();
        Version { state, epoch: epoch(group, breaker), random }
    }
}

/// A breaker's transition count as leases remember it.
pub(crate) fn epoch(group: u16, breaker: &Breaker) -> u32 {
    epoch_of(group, breaker.transitions)
}

/// The call was overtaken too often by others.
pub(crate) fn overtaken() -> StoreError {
    StoreError::Overloaded("other calls change the same jobs all the time: try again".into())
}

/// What a verb expects of an engine was not there.
pub(crate) fn inconsistent(what: &str) -> StoreError {
    StoreError::Unavailable(format!("the store is inconsistent: {what}; run redrive verify"))
}

/// How a call fails. `begun`: some of its parts were applied before.
pub(crate) fn after_some(error: StoreError, begun: bool) -> StoreError {
    match error {
        error @ (StoreError::OutcomeUnknown(_) | StoreError::DurabilityNotConfirmed(_)) => error,
        error if begun => StoreError::OutcomeUnknown(format!("a part was carried out, then: {error}")),
        error => error,
    }
}

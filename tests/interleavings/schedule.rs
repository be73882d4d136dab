//! Every order in which the steps of several verbs can be done.

use crate::fixture::{Fixture, Named, Scene};
use crate::stepped::{Stepped, turn};
use redrive::queue::{Answer, CallContext, QueueMemory, StoreLimits, Verb, run};
use redrive::store::memory::MemoryStorage;
use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

pub(crate) const LIMITS: StoreLimits = StoreLimits { queues: 100, leases: 1_000, finished_keys: 1_000 };

/// A way to choose among what goes on: at each step, which verb goes next. The choices of one run tell which run is next.
#[derive(Debug, Default)]
pub(crate) struct Choices {
    /// What was chosen, and out of how many.
    made: Vec<(usize, usize)>,
    at: usize,
}

impl Choices {
    pub(crate) fn choose(&mut self, among: usize) -> usize {
        if self.at == self.made.len() {
            self.made.push((0, among));
        }
        let (choice, of) = self.made[self.at];
        assert_eq!(of, among, "a run that is not repeatable");
        self.at += 1;
        choice
    }

    /// The next run. False: there is none.
    pub(crate) fn next(&mut self) -> bool {
        self.at = 0;
        while let Some((choice, among)) = self.made.pop() {
            if choice + 1 < among {
                self.made.push((choice + 1, among));
                return true;
            }
        }
        false
    }

    pub(crate) fn taken(&self) -> Vec<usize> {
        self.made.iter().map(|(choice, _)| *choice).collect()
    }
}

type Running<'a> = Pin<Box<dyn Future<Output = String> + 'a>>;

/// A verb to be made for a store.
pub(crate) type Make = fn(&Fixture) -> Verb;

/// One server's verb: each has what it remembers of the queues to itself. `waits`: it has found another server at work on the
/// same request, and asks again.
async fn verb(fixture: &Fixture, seed: u64, make: Make, waits: &Cell<bool>) -> String {
    let memory = QueueMemory::default();
    let mut storage = Stepped(fixture.storage.clone());
    loop {
        let mut cx = CallContext::new(fixture.settings.clone(), seed, &memory, LIMITS);
        let answer = run(&mut storage, &mut cx, make(fixture)).await;
        if !matches!(answer, Ok(Answer::Claim(None))) {
            return normalised(&answer);
        }
        waits.set(true);
        turn().await;
    }
}

fn normalised(answer: &Result<Answer, redrive::store::StoreError>) -> String {
    match answer {
        // When it looks next depends on what is done meanwhile.
        Ok(Answer::Sweep(swept, _)) => without_random(&format!("{:?}", swept.expired)),
        _ => without_random(&format!("{answer:?}")),
    }
}

/// Random numbers differ between runs.
pub(crate) fn without_random(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = ["nonce: ", "answer: "].iter().filter_map(|it| rest.find(it)).min() {
        let colon = at + rest[at..].find(' ').unwrap() + 1;
        out.push_str(&rest[..colon]);
        rest = rest[colon..].trim_start_matches(|c: char| c.is_ascii_digit());
    }
    out.push_str(rest);
    out
}

/// What came of a run: the answers, and the store as operators see it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Outcome {
    pub(crate) answers: Vec<String>,
    pub(crate) store: String,
}

/// A claim waits for so long for a server that does not come back.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(6);

/// Runs the verbs; `choices` says whose step is next, and at most `switches` times a verb waits in the middle for another. A verb
/// that `dies` after so many steps does no more.
pub(crate) fn interleave(
    fixture: &Fixture, verbs: &[Make], choices: &mut Choices, mut switches: usize, mut dies: Option<(usize, usize)>,
) -> Vec<Option<String>> {
    let mut current: Option<usize> = None;
    let mut answers: Vec<Option<String>> = vec![None; verbs.len()];
    let waits: Vec<_> = verbs.iter().map(|_| Cell::new(false)).collect();
    let mut running: Vec<(usize, Running<'_>)> = verbs
        .iter()
        .enumerate()
        .map(|(at, make)| (at, Box::pin(verb(fixture, 1_000 + at as u64, *make, &waits[at])) as Running<'_>))
        .collect();
    let mut context = Context::from_waker(Waker::noop());
    // The first poll goes up to the first step.
    running.retain_mut(|(at, future)| match future.as_mut().poll(&mut context) {
        Poll::Ready(answer) => {
            answers[*at] = Some(answer);
            false
        }
        Poll::Pending => true,
    });
    let mut steps = vec![0; verbs.len()];
    while !running.is_empty() {
        if let Some((who, after)) = dies
            && steps[who] == after
        {
            running.retain(|(at, _)| *at != who);
            dies = None;
            continue;
        }
        let able: Vec<_> = (0..running.len()).filter(|place| !waits[running[*place].0].get()).collect();
        if able.is_empty() {
            // The server that they wait for has died.
            fixture.clock.advance(GIVEN_UP_AFTER);
            waits.iter().for_each(|waits| waits.set(false));
            continue;
        }
        let goes_on = able.iter().position(|place| Some(running[*place].0) == current);
        let choice = match goes_on {
            Some(choice) if switches == 0 => choice,
            _ => choices.choose(able.len()),
        };
        if goes_on.is_some_and(|current| current != choice) {
            switches -= 1;
        }
        let (at, future) = &mut running[able[choice]];
        current = Some(*at);
        steps[*at] += 1;
        assert!(steps[*at] < 400, "verb {at} comes to no end");
        if let Poll::Ready(answer) = future.as_mut().poll(&mut context) {
            answers[*at] = Some(answer);
            drop(running.remove(able[choice]));
            waits.iter().for_each(|waits| waits.set(false));
        }
    }
    answers
}

/// The outcomes of all orders in which the verbs can run one after the other.
pub(crate) fn one_after_the_other(begun: &Fixture, verbs: &[Make]) -> Vec<Outcome> {
    permutations(verbs.len())
        .into_iter()
        .map(|order| {
            let fixture = begun.copied();
            let mut answers = vec![String::new(); verbs.len()];
            for at in order {
                answers[at] = complete(verb(&fixture, 1_000 + at as u64, verbs[at], &Cell::default()));
            }
            Outcome { answers, store: fixture.describe() }
        })
        .collect()
}

/// Polls until it is done.
pub(crate) fn complete<T>(future: impl Future<Output = T>) -> T {
    let mut future = Box::pin(future);
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..100_000 {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
    }
    panic!("a verb comes to no end");
}

fn permutations(count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let shorter = permutations(count - 1);
    let with = |order: &Vec<usize>| {
        (0..=order.len())
            .map(|at| {
                let mut order = order.clone();
                order.insert(at, count - 1);
                order
            })
            .collect::<Vec<_>>()
    };
    shorter.iter().flat_map(with).collect()
}

/// More interleavings than these are not all run: of verbs with many steps, those with few switches between them. Verbs that meet
/// have more steps than they have alone.
const ALL_MAX: f64 = 400.0;
const RUNS_MAX: usize = 5_000;
const FEW_SWITCHES: usize = 2;

/// These are several changes, each atomic by itself: another verb may run between them, and the store must be in order.
const COMPOSITE: [&str; 4] = ["sweep", "requeue", "requeue to another queue", "purge"];

/// How many interleavings there are of verbs with so many steps.
fn interleavings(steps: &[usize]) -> f64 {
    let (mut count, mut total) = (1.0, 0u32);
    for steps in steps {
        for step in 1..=*steps {
            total += 1;
            count *= f64::from(total) / step as f64;
        }
    }
    count
}

/// The steps of a verb that runs alone.
fn steps(begun: &Fixture, make: Make) -> usize {
    let (fixture, waits) = (begun.copied(), Cell::default());
    let mut future = Box::pin(verb(&fixture, 1_000, make, &waits));
    let mut context = Context::from_waker(Waker::noop());
    (0..).find(|_| future.as_mut().poll(&mut context).is_ready()).unwrap()
}

/// Stores that runs have led to, each looked at once: many runs lead to the same.
#[derive(Default)]
pub(crate) struct Seen(Vec<(MemoryStorage, String)>);

impl Seen {
    /// The store as operators see it, which must be in order.
    pub(crate) fn look(&mut self, fixture: &Fixture) -> &str {
        let known = self.0.iter().position(|(storage, _)| storage.holds_the_same(&fixture.storage));
        let at = known.unwrap_or_else(|| {
            fixture.verify();
            self.0.push((fixture.copied().storage, fixture.describe()));
            self.0.len() - 1
        });
        &self.0[at].1
    }
}

/// Every interleaving of the verbs, from this scene on, leads to what one after the other would.
pub(crate) fn check(scene: Scene, verbs: &[Named]) -> usize {
    let begun = scene();
    let (names, verbs): (Vec<_>, Vec<_>) = verbs.iter().copied().unzip();
    let allowed = one_after_the_other(&begun, &verbs);
    let steps: Vec<_> = verbs.iter().map(|make| steps(&begun, *make)).collect();
    let mut switches = if interleavings(&steps) <= ALL_MAX { usize::MAX } else { FEW_SWITCHES };
    let is_composite = names.iter().any(|name| COMPOSITE.contains(name));
    let (mut choices, mut seen) = (Choices::default(), Seen::default());
    let mut runs = 0;
    loop {
        let fixture = begun.copied();
        let answers = interleave(&fixture, &verbs, &mut choices, switches, None);
        let answers = answers.into_iter().map(Option::unwrap).collect();
        let outcome = Outcome { answers, store: seen.look(&fixture).to_owned() };
        assert!(
            is_composite || allowed.contains(&outcome),
            "{names:?} in the order {:?} lead to\n{outcome:#?}\nwhich is none of\n{allowed:#?}",
            choices.taken(),
        );
        runs += 1;
        if runs == RUNS_MAX && switches > FEW_SWITCHES {
            (switches, choices) = (FEW_SWITCHES, Choices::default());
        } else if !choices.next() {
            return runs;
        }
    }
}

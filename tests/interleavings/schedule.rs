//! Every order in which the steps of several verbs can be done.

use crate::{fixture::Fixture, stepped::Stepped};
use redrive::queue::{Answer, CallContext, QueueMemory, StoreLimits, Verb, run};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

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

/// One server's verb: each has what it remembers of the queues to itself.
pub(crate) async fn verb(storage: Stepped, fixture: &Fixture, seed: u64, verb: Verb) -> String {
    let memory = QueueMemory::default();
    let mut storage = storage;
    let mut cx = CallContext::new(fixture.settings.clone(), seed, &memory, LIMITS);
    // A claim that finds another server at work on the same request asks again.
    let answer = run(&mut storage, &mut cx, verb).await;
    normalised(&answer)
}

fn normalised(answer: &Result<Answer, redrive::store::StoreError>) -> String {
    without_random(&format!("{answer:?}"))
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

/// Runs the verbs; `choices` says whose step is next, and at most `switches` times a verb waits in the middle for another. A verb
/// that `dies` after so many steps does no more.
pub(crate) fn interleave(
    fixture: &Fixture, verbs: &[fn(&Fixture) -> Verb], choices: &mut Choices, mut switches: usize,
    mut dies: Option<(usize, usize)>,
) -> Vec<Option<String>> {
    let mut current: Option<usize> = None;
    let mut answers: Vec<Option<String>> = vec![None; verbs.len()];
    let mut running: Vec<(usize, Running<'_>)> = verbs
        .iter()
        .enumerate()
        .map(|(at, make)| {
            let storage = Stepped(fixture.storage.clone());
            let future = verb(storage, fixture, 1_000 + at as u64, make(fixture));
            (at, Box::pin(future) as Running<'_>)
        })
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
        let goes_on = running.iter().position(|(at, _)| Some(*at) == current);
        let choice = match goes_on {
            Some(choice) if switches == 0 => choice,
            _ => choices.choose(running.len()),
        };
        if goes_on.is_some_and(|current| current != choice) {
            switches -= 1;
        }
        let (at, future) = &mut running[choice];
        current = Some(*at);
        steps[*at] += 1;
        assert!(steps[*at] < 400, "verb {at} comes to no end");
        if let Poll::Ready(answer) = future.as_mut().poll(&mut context) {
            answers[*at] = Some(answer);
            drop(running.remove(choice));
        }
    }
    answers
}

/// The outcomes of all orders in which the verbs can run one after the other.
pub(crate) fn one_after_the_other(verbs: &[fn(&Fixture) -> Verb]) -> Vec<Outcome> {
    permutations(verbs.len())
        .into_iter()
        .map(|order| {
            let fixture = Fixture::new();
            let mut answers = vec![String::new(); verbs.len()];
            for at in order {
                let storage = Stepped(fixture.storage.clone());
                let future = verb(storage, &fixture, 1_000 + at as u64, verbs[at](&fixture));
                answers[at] = complete(future);
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

/// More interleavings than these are not all run: of verbs with many steps, those with few switches between them.
const ALL_MAX: f64 = 400.0;
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
fn steps(make: fn(&Fixture) -> Verb) -> usize {
    let fixture = Fixture::new();
    let mut future = Box::pin(verb(Stepped(fixture.storage.clone()), &fixture, 1_000, make(&fixture)));
    let mut context = Context::from_waker(Waker::noop());
    (0..).find(|_| future.as_mut().poll(&mut context).is_ready()).unwrap()
}

/// Every interleaving of the verbs leads to what one after the other would.
pub(crate) fn check(names: &[&str], verbs: &[fn(&Fixture) -> Verb]) -> usize {
    let allowed = one_after_the_other(verbs);
    let steps: Vec<_> = verbs.iter().map(|make| steps(*make)).collect();
    let switches = if interleavings(&steps) <= ALL_MAX { usize::MAX } else { FEW_SWITCHES };
    let is_composite = names.iter().any(|name| COMPOSITE.contains(name));
    let mut choices = Choices::default();
    let mut runs = 0;
    loop {
        let fixture = Fixture::new();
        let answers = interleave(&fixture, verbs, &mut choices, switches, None);
        let answers = answers.into_iter().map(Option::unwrap).collect();
        let outcome = Outcome { answers, store: fixture.describe() };
        assert!(
            is_composite || allowed.contains(&outcome),
            "{names:?} in the order {:?} lead to\n{outcome:#?}\nwhich is none of\n{allowed:#?}",
            choices.taken(),
        );
        fixture.verify();
        runs += 1;
        if !choices.next() {
            return runs;
        }
    }
}

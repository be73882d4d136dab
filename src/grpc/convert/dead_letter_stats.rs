//! Dead letters, counted.

use super::{
    check::{Check, Invalid},
    count,
    dead_letters::page_size,
    page_token::{self, Kind},
    time::timestamp_out,
};
use crate::{
    domain::{ids::QueueName, limits::Limits},
    grpc::pb,
    store::{DeadCount, DeadCounts},
};

/// Which queues to count.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::grpc) struct StatsQuery {
    pub(in crate::grpc) queue: Option<QueueName>,
    pub(in crate::grpc) after: Option<QueueName>,
    pub(in crate::grpc) limit: usize,
}

pub(in crate::grpc) fn dead_letter_stats(
    limits: &Limits,
    request: &pb::GetDeadLetterStatsRequest,
) -> Result<StatsQuery, Invalid> {
    let mut check = Check::new(limits);
    let part = match request.queue.as_str() {
        "" => None,
        name => check.dead_part("queue", name),
    };
    if part.as_ref().is_some_and(|part| part.overflow_only) {
        check.refuse("queue", "name the queue itself: `overflow` counts its overflow");
    }
    let mut after = None;
    if !request.page_token.is_empty() {
        match page_token::decode(Kind::DeadLetterStats, &request.queue, &request.page_token) {
            Ok(name) => {
                after = String::from_utf8(name).ok().and_then(|name| QueueName::parse(&name));
            }
            Err(problem) => check.refuse("page_token", problem),
        }
    }
    let limit = page_size(request.page_size, limits);
    check.done(Some(StatsQuery { queue: part.map(|part| part.queue), after, limit }))
}

pub(in crate::grpc) fn dead_letter_stats_page(
    limits: &Limits,
    query: &StatsQuery,
    counts: &DeadCounts,
) -> pb::GetDeadLetterStatsResponse {
    let full = query.queue.is_none() && counts.queues.len() >= query.limit;
    let last = counts.queues.last().filter(|_| full).map(|last| &last.queue);
    let queues = counts.queues.iter().map(|queue| (&queue.queue, count_out(queue)));
    let (queues, cut_after) = page_token::fit(queues, limits.reply_bytes);
    let token =
        |name: &QueueName| page_token::encode(Kind::DeadLetterStats, "", name.as_str().as_bytes());
    pb::GetDeadLetterStatsResponse {
        queues,
        total_count: count(counts.total),
        next_page_token: cut_after.or(last).map(token).unwrap_or_default(),
    }
}

fn count_out(queue: &DeadCount) -> pb::DeadLetterCount {
    let by_error_type = queue.by_error_type.iter().map(|(error_type, number)| pb::ErrorTypeCount {
        error_type: error_type.clone(),
        count: count(*number),
    });
    pb::DeadLetterCount {
        queue: queue.queue.to_string(),
        count: count(queue.count),
        overflow: count(queue.overflow),
        oldest: queue.oldest.map(timestamp_out),
        by_error_type: by_error_type.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::convert::testing::refusals;

    fn read(
        change: impl FnOnce(&mut pb::GetDeadLetterStatsRequest),
    ) -> Result<StatsQuery, Invalid> {
        let mut request = pb::GetDeadLetterStatsRequest::default();
        change(&mut request);
        dead_letter_stats(&Limits::default(), &request)
    }

    fn counts(names: &[&str]) -> DeadCounts {
        let queue = |name: &&str| DeadCount::none(QueueName::parse(name).unwrap());
        DeadCounts { queues: names.iter().map(queue).collect(), total: 7 }
    }

    #[test]
    fn a_full_page_has_a_token_for_the_next() {
        let limits = Limits::default();
        let query = read(|r| r.page_size = 2).unwrap();
        let page = dead_letter_stats_page(&limits, &query, &counts(&["a", "b"]));
        assert_eq!((page.queues.len(), page.total_count), (2, 7));
        let next = read(|r| r.page_token = page.next_page_token.clone()).unwrap();
        assert_eq!(next.after, QueueName::parse("b"));
        let page = dead_letter_stats_page(&limits, &query, &counts(&["a"]));
        assert_eq!(page.next_page_token, "");
        let one = read(|r| (r.queue, r.page_size) = ("dlq:a".into(), 1)).unwrap();
        assert_eq!(one.queue, QueueName::parse("a"));
        assert_eq!(dead_letter_stats_page(&limits, &one, &counts(&["a"])).next_page_token, "");
    }

    #[test]
    fn bad_fields_are_named() {
        let bad = refusals(read(|r| (r.queue, r.page_token) = ("!".into(), "x".into())));
        assert!(bad[0].starts_with("queue: ") && bad[1].starts_with("page_token: "), "{bad:?}");
        let overflow = refusals(read(|r| r.queue = "dlq:overflow:q".into()));
        assert!(overflow[0].starts_with("queue: "), "{overflow:?}");
    }
}

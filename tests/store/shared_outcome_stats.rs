//! Several servers on one Redis count for one breaker.

use crate::builders::*;
use crate::redis_server::Server;
use crate::servers::{One, run};
use redrive::domain::{BreakerName, BreakerState};
use redrive::queue::{BreakerOrder, Delivered, IdleReason, Nack, Settlements};
use std::time::Duration;

/// So many failures open a breaker, however short ago the last success was.
const ENOUGH: usize = 20;

impl One {
    /// So many different jobs, leased.
    async fn out(&self, jobs: usize) -> Vec<Delivered> {
        for _ in 0..jobs {
            self.enqueue(job("q")).await;
        }
        let out = self.claim("q", jobs).await;
        assert_eq!(out.len(), jobs);
        out
    }

    /// The breaker's state, and how many failures it counts.
    async fn sees(&self) -> (BreakerState, u32) {
        let view = self.store.breakers(vec![queue("q")]).await.unwrap().remove(0).work;
        let settings = self.store.settings();
        (view.breaker.state(&settings.defaults.breaker, self.store.now()), view.failures)
    }

    fn with_threshold(self, threshold: u32) -> Self {
        self.set(|queue| queue.breaker.failure_threshold = threshold);
        self
    }
}

async fn three(server: &Server, namespace: &str) -> [One; 3] {
    [One::open(server, namespace).await, One::open(server, namespace).await, One::open(server, namespace).await]
}

#[test]
fn failures_that_are_spread_over_the_servers_open_the_breaker_at_the_threshold() {
    run(async |server, namespace| {
        let servers = three(server, &namespace).await;
        let out = servers[0].out(ENOUGH).await;
        for (at, one) in out.chunks(1).enumerate() {
            for server in &servers {
                assert_eq!(server.sees().await, (BreakerState::Closed, at as u32));
            }
            servers[at % 3].nack(one, "Timeout").await;
        }
        servers[0].enqueue(job("q")).await;
        for server in &servers {
            assert_eq!(server.sees().await, (BreakerState::Open, 0));
            assert_eq!(server.idle("q").await, IdleReason::BreakerOpen);
        }
    });
}

#[test]
fn a_success_at_one_server_ends_the_row_of_failures_at_another() {
    run(async |server, namespace| {
        let [a, b, c] = three(server, &namespace).await;
        let out = a.out(20).await;
        a.nack(&out[..4], "Timeout").await;
        b.ack(&out[4..5]).await;
        assert_eq!(c.sees().await, (BreakerState::Closed, 0));
        a.nack(&out[5..9], "Timeout").await;
        assert_eq!(c.sees().await, (BreakerState::Closed, 4));
        // One server that sees nothing but failures does not speak for all.
        b.ack(&out[9..12]).await;
        a.nack(&out[12..13], "Timeout").await;
        assert_eq!(c.sees().await, (BreakerState::Closed, 1));
    });
}

#[test]
fn what_fails_beside_successes_of_just_now_is_no_outage() {
    run(async |server, namespace| {
        let [a, b, _] = three(server, &namespace).await;
        let out = a.out(20).await;
        b.ack(&out[..1]).await;
        a.nack(&out[1..], "Timeout").await;
        assert_eq!(b.sees().await, (BreakerState::Closed, 19));
    });
}

#[test]
fn completed_jobs_that_are_kept_are_successes_for_all() {
    run(async |server, namespace| {
        let [a, b, _] = three(server, &namespace).await;
        b.set(|queue| queue.completed_retention = Some(HOUR));
        let out = a.out(6).await;
        a.nack(&out[..4], "Timeout").await;
        b.ack(&out[4..5]).await;
        a.nack(&out[5..], "Timeout").await;
        assert_eq!(b.sees().await, (BreakerState::Closed, 1));
    });
}

#[test]
fn failures_at_the_same_time_are_all_counted() {
    const EACH: usize = 20;
    run(async |server, namespace| {
        let servers = three(server, &namespace).await.map(|one| one.with_threshold(1_000));
        let out = servers[0].out(3 * EACH).await;
        let [a, b, c] = &servers;
        let nack_all = async |one: &One, jobs: &[Delivered]| {
            for job in jobs.chunks(1) {
                one.nack(job, "Timeout").await;
            }
        };
        tokio::join!(nack_all(a, &out[..EACH]), nack_all(b, &out[EACH..2 * EACH]), nack_all(c, &out[2 * EACH..]));
        for server in &servers {
            assert_eq!(server.sees().await, (BreakerState::Closed, 3 * EACH as u32));
        }
        // Nothing waits beside the one record of what was counted, so that it does not grow.
        a.nack(&a.out(1).await, "Timeout").await;
        let mut redis = redis::Client::open(server.address()).unwrap().get_connection().unwrap();
        let fields: Vec<Vec<u8>> = redis::cmd("HKEYS").arg(format!("{namespace}:{{q}}:s")).query(&mut redis).unwrap();
        let beginning_with = |byte: u8| fields.iter().filter(|field| field[0] == byte).count();
        let [outcomes, successes, versions] = [b'o', b's', 0].map(beginning_with);
        assert_eq!((outcomes, successes, versions), (1, 0, 0), "{fields:?}");
        assert_eq!(b.sees().await, (BreakerState::Closed, 3 * EACH as u32 + 1));
    });
}

#[test]
fn failures_at_the_same_time_open_the_breaker_when_together_they_are_enough() {
    run(async |server, namespace| {
        for round in 0..20 {
            let namespace = format!("{namespace}-{round}");
            let [a, b, c] = three(server, &namespace).await;
            let out = a.out(ENOUGH).await;
            tokio::join!(a.nack(&out[..7], "Timeout"), b.nack(&out[7..14], "Timeout"), c.nack(&out[14..], "Timeout"));
            assert_eq!(c.sees().await.0, BreakerState::Open, "round {round}");
        }
    });
}

#[test]
fn a_reset_at_one_server_makes_all_count_from_zero() {
    run(async |server, namespace| {
        let [a, b, c] = three(server, &namespace).await;
        let out = a.out(5).await;
        a.nack(&out[..4], "Timeout").await;
        let name = BreakerName::parse("queue:q").unwrap();
        // It has never looked at what the others have counted.
        b.store.set_breaker(name, BreakerOrder::Reset).await.unwrap();
        assert_eq!(c.sees().await, (BreakerState::Closed, 0));
        // From before the reset.
        a.nack(&out[4..], "Timeout").await;
        assert_eq!(c.sees().await, (BreakerState::Closed, 0));
        let out = a.out(4).await;
        a.nack(&out, "Timeout").await;
        assert_eq!(c.sees().await, (BreakerState::Closed, 4));
    });
}

#[test]
fn a_success_from_before_the_last_transition_ends_no_row() {
    run(async |server, namespace| {
        let [a, b, c] = three(server, &namespace).await;
        let old = a.out(2).await;
        let name = BreakerName::parse("queue:q").unwrap();
        b.store.set_breaker(name, BreakerOrder::Reset).await.unwrap();
        let out = a.out(5).await;
        a.nack(&out[..3], "Timeout").await;
        b.ack(&old[..1]).await;
        assert_eq!(c.sees().await, (BreakerState::Closed, 3));
        b.ack(&[out[3].clone(), old[1].clone()]).await;
        assert_eq!(c.sees().await, (BreakerState::Closed, 0));
    });
}

#[test]
fn successes_of_epochs_that_are_over_are_kept_nowhere() {
    run(async |server, namespace| {
        let [a, b, _] = three(server, &namespace).await;
        for _ in 0..30 {
            let out = a.out(3).await;
            a.ack(&out[..1]).await;
            let name = BreakerName::parse("queue:q").unwrap();
            a.store.set_breaker(name, BreakerOrder::Reset).await.unwrap();
            // From before the reset, at the server that knows of it and at one that does not.
            a.ack(&out[1..2]).await;
            b.ack(&out[2..]).await;
        }
        let mut redis = redis::Client::open(server.address()).unwrap().get_connection().unwrap();
        let fields: Vec<Vec<u8>> = redis::cmd("HKEYS").arg(format!("{namespace}:{{q}}:s")).query(&mut redis).unwrap();
        let sums: Vec<_> = fields.iter().filter(|field| field[0] == b's').collect();
        assert!(sums.len() <= 1, "{sums:?}");
    });
}

#[test]
fn a_server_that_starts_later_knows_what_was_counted() {
    run(async |server, namespace| {
        let a = One::open(server, &namespace).await;
        let out = a.out(ENOUGH).await;
        a.nack(&out[1..], "Timeout").await;
        drop(a);
        let b = One::open(server, &namespace).await;
        assert_eq!(b.sees().await, (BreakerState::Closed, ENOUGH as u32 - 1));
        b.nack(&out[..1], "Timeout").await;
        assert_eq!(b.sees().await.0, BreakerState::Open);
    });
}

#[test]
fn a_probe_that_closes_the_breaker_is_a_success_of_just_now_for_all() {
    run(async |server, namespace| {
        let mut servers = three(server, &namespace).await;
        for one in &mut servers {
            one.set(|queue| {
                queue.breaker.recovery_timeout = Duration::ZERO;
                queue.breaker.first_probe = Duration::ZERO;
                queue.breaker.ramp = false;
            });
        }
        let [a, mut b, c] = servers;
        let out = a.out(ENOUGH).await;
        a.nack(&out, "Timeout").await;
        a.enqueue(job("q")).await;
        // By its own store time, which may be behind the other's by a round trip.
        let probe = [b.gets("q").await];
        assert!(probe[0].delivery.probe);
        c.ack(&probe).await;
        assert_eq!(b.sees().await, (BreakerState::Closed, 0));
        let out = b.out(10).await;
        b.nack(&out, "Timeout").await;
        assert_eq!(a.sees().await, (BreakerState::Closed, 10), "the success is too near");
    });
}

#[test]
fn deaths_that_are_spread_over_the_servers_open_the_breaker_of_the_dead_letters_for_all() {
    run(async |server, namespace| {
        let servers = three(server, &namespace).await;
        servers.iter().for_each(|one| one.set(|queue| queue.dead_letters.max_entries = 1));
        let out = servers[0].out(8).await;
        let die = async |at: usize| {
            let nack = Nack { lease: out[at].delivery.lease.clone(), outcome: permanent(), checkpoint: String::new() };
            servers[at % 3].settle(Settlements { nacks: vec![nack], ..Settlements::default() }).await;
        };
        let see = async |expected: (BreakerState, u32)| {
            for one in &servers {
                let view = one.store.breakers(vec![queue("q")]).await.unwrap().remove(0).dead_letters;
                let settings = one.store.settings();
                let state = view.breaker.state(&settings.defaults.dead_letters.breaker, one.store.now());
                assert_eq!((state, view.failures), expected);
            }
        };
        // There is room for the first.
        for at in 0..5 {
            die(at).await;
            see((BreakerState::Closed, at as u32)).await;
        }
        die(5).await;
        see((BreakerState::Open, 0)).await;
        // It goes to the overflow without a look, although there is room by the settings of this server.
        servers[0].set(|queue| queue.dead_letters.max_entries = 100);
        die(6).await;
        let page = servers[1].store.dead_letters(dead_query("q")).await.unwrap();
        let overflow: Vec<_> = page.jobs.iter().filter_map(|job| Some(job.death.as_ref()?.overflow)).collect();
        assert_eq!(overflow, [false, true, true, true, true, true, true]);
        servers[0].set(|queue| queue.dead_letters.max_entries = 1);
        servers[2].store.purge(purge_of("q", oldest(1))).await.unwrap();
        see((BreakerState::Closed, 0)).await;
        die(7).await;
        let page = servers[0].store.dead_letters(dead_query("q")).await.unwrap();
        assert_eq!(page.jobs.last().unwrap().death.as_ref().map(|death| death.overflow), Some(false));
    });
}

#[test]
fn an_ack_of_many_jobs_is_one_call_to_redis() {
    crate::harness::runtime().block_on(async {
        let server = Server::start();
        let a = One::open(&server, "calls").await;
        let out = a.out(20).await;
        a.ack(&out[..10]).await;
        let mut redis = redis::Client::open(server.address()).unwrap().get_connection().unwrap();
        let mut scripts = || {
            let stats: String = redis::cmd("INFO").arg("commandstats").query(&mut redis).unwrap();
            let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap();
            line.split(['=', ',']).nth(1).unwrap().parse::<u64>().unwrap()
        };
        let before = scripts();
        a.ack(&out[10..]).await;
        assert_eq!(scripts() - before, 1);
    });
}

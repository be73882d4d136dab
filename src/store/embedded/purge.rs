//! Purge: dead letters go for good, with all that hung on them.

use super::{
    dead::Dead,
    leases::Traits,
    memory::QueueNumber,
    replies::{Call, Earlier},
    writer::{Failure, Writer},
};
use crate::{
    domain::ids::JobId,
    store::{Purge, PurgeRefused, Purged, SkipReason, saved_reply},
};
use std::collections::HashMap;

impl Writer<'_> {
    pub(super) fn purge(&mut self, purge: &Purge) -> Result<Result<Purged, PurgeRefused>, Failure> {
        match self.earlier_reply(Call::Purge, purge.request.as_ref())? {
            Earlier::Nothing => {}
            Earlier::Answered(record) => return Ok(Ok(saved_reply::read_purged(&record))),
            Earlier::Another => return Ok(Err(PurgeRefused::RequestIdTaken)),
        }
        let Some(queue) = self.memory.find(&purge.part.queue) else {
            return Ok(Err(PurgeRefused::NoSuchQueue));
        };
        let picked = self.pick(queue, &purge.part, &purge.which)?;
        let mut out = Purged { has_more: picked.has_more, left: picked.left, ..Purged::default() };
        // Whoever was named before is gone, in a dry run too.
        let mut gone = HashMap::new();
        for letter in picked.letters {
            match letter {
                Ok(dead) => match gone.get(&dead.number) {
                    Some(id) => out.skipped.push((JobId::clone(id), SkipReason::JobNotFound)),
                    None => {
                        if let Some((spec, _)) = self.read_head(dead.number)? {
                            gone.insert(dead.number, spec.id);
                        }
                        let removed = purge.dry_run || self.remove_dead(queue, &dead)?;
                        out.count += u64::from(removed);
                    }
                },
                Err(id) => out.skipped.push((id, SkipReason::JobNotFound)),
            }
        }
        self.memory.change(queue, |queue| {
            queue.totals.purged += if purge.dry_run { 0 } else { out.count };
        });
        self.keep_reply(Call::Purge, purge.request.as_ref(), || saved_reply::purged(&out))?;
        Ok(Ok(out))
    }

    /// DEAD → gone. False: it was not dead.
    pub(super) fn remove_dead(&mut self, queue: QueueNumber, dead: &Dead) -> Result<bool, Failure> {
        if !self.take_dead(queue, dead)? {
            return Ok(false);
        }
        let row = dead.number.cast_signed();
        let traits = match self.read_job(dead.number)? {
            Ok(spec) => {
                // A dead job may hold its key.
                if let Some(key) = &spec.key {
                    self.sql.delete_key.execute((queue, key, row))?;
                }
                Traits(Traits::SEEN | Traits::OWN_ID | Traits::DEADLINE)
            }
            // What a damaged head says about ids and keys cannot be trusted: they are looked for.
            Err(_) => {
                self.sql.delete_ids_of.execute([row])?;
                self.sql.delete_keys_of.execute([row])?;
                self.sql.delete_deadlines_of.execute([row])?;
                Traits(Traits::SEEN)
            }
        };
        self.remove(dead.number, queue, traits)?;
        Ok(true)
    }
}

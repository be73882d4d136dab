//! Requeue: dead letters go back to work, in their own queue or in another.

use super::{
    Core,
    connection::Arg,
    dead::Letter,
    look::Show,
    moves::Bound,
    plans::{Bulk, Plan},
    record,
    registry::Queue,
    replies::{Call, Earlier},
    scripts::REVIVE,
};
use crate::{
    domain::{
        ids::JobId,
        job::DeadReason,
    },
    store::{
        JobView, Purge, PurgeRefused, Purged, Refused, Requeue, RequeueRefused, Requeued,
        SkipReason, StoreError, Which, codec, saved_reply, sizes,
    },
};
use std::{collections::HashSet, sync::Arc};

/// Bodies that one call reads, about.
const BYTES_MAX: usize = 16 << 20;

/// Dead letters that are read whole and moved at once.
const CANDIDATES_MAX: usize = 16;

/// A dead letter that the call means, with all that is known of it, or why it is passed over.
pub(super) struct Candidate {
    pub(super) id: JobId,
    pub(super) letter: Letter,
    /// None: it is passed over for this reason.
    pub(super) view: Result<Box<JobView>, SkipReason>,
}

impl Candidate {
    fn body_bytes(&self) -> usize {
        self.view.as_ref().map_or(0, |view| view.spec.body.bytes().len())
    }
}

impl Core {
    pub(super) async fn requeue(
        self: &Arc<Self>,
        requeue: Requeue,
    ) -> Result<Result<Requeued, RequeueRefused>, StoreError> {
        let begun = match self.earlier_reply(Call::Requeue, requeue.request.as_ref()).await? {
            Earlier::Nothing => None,
            Earlier::Begun(choice) => Some(choice),
            Earlier::Answered(record) => return Ok(Ok(saved_reply::read_requeued(&record))),
            Earlier::Another => return Ok(Err(RequeueRefused::RequestIdTaken)),
        };
        let Some(queue) = self.find(&requeue.part.queue).await? else {
            return Ok(Err(RequeueRefused::NoSuchQueue));
        };
        let target = match &requeue.target {
            Some(name) if *name != queue.name => {
                if requeue.dry_run {
                    // A queue that is not there has nothing in it.
                    self.find(name).await?.map(Some)
                } else {
                    match self.queue_for(name).await? {
                        Ok(target) => Some(Some(target)),
                        Err(Refused::TooManyQueues { limit }) => {
                            return Ok(Err(RequeueRefused::TooManyQueues { limit }));
                        }
                        Err(_) => None,
                    }
                }
            }
            _ => Some(None),
        };
        if begun.is_some() {
            // Whoever began it may have left a job on its way.
            self.complete_moves(&queue).await?;
        }
        let bulk = Bulk {
            call: Call::Requeue,
            request: requeue.request.as_ref().filter(|_| !requeue.dry_run),
            part: &requeue.part,
            which: &requeue.which,
        };
        let Plan { picked, done } = self.plan(&queue, bulk, begun).await?;
        let (has_more, left) = (picked.has_more, picked.left);
        let mut out = Requeued { ids: done, has_more, left, ..Requeued::default() };
        let named = matches!(requeue.which, Which::Ids(_));
        let (mut gone, mut bytes) = (HashSet::new(), 0);
        let mut letters = &picked.letters[..];
        while let Some(next) = letters.first() {
            // Who named no ids can go on where this call stops, and others have their turn in between.
            if bytes > BYTES_MAX
                && !named
                && let Ok(next) = next
            {
                out.has_more = true;
                out.left.after = next.death - 1;
                break;
            }
            let room = if named { usize::MAX } else { BYTES_MAX - bytes };
            let candidates = self.candidates(&queue, letters, room, &mut gone).await?;
            letters = &letters[candidates.len()..];
            bytes += candidates.iter().flatten().map(Candidate::body_bytes).sum::<usize>();
            let done = match &target {
                Some(None) => self.revive(&queue, &candidates, &requeue).await?,
                Some(Some(target)) => self.send(&queue, target, &candidates, &requeue).await?,
                None => vec![None; candidates.len()],
            };
            for (candidate, skipped) in candidates.into_iter().zip(done) {
                match candidate {
                    Err(id) => out.skipped.push((id, SkipReason::JobNotFound)),
                    Ok(Candidate { id, view: Err(reason), .. }) => out.skipped.push((id, reason)),
                    Ok(Candidate { id, letter, .. }) => match skipped {
                        Some(reason) => {
                            gone.remove(&letter.number);
                            out.skipped.push((id, reason));
                        }
                        None => out.ids.push(id),
                    },
                }
            }
        }
        if !requeue.dry_run && !out.ids.is_empty() {
            self.made_room(&queue).await?;
        }
        let request = requeue.request.as_ref();
        self.keep_reply(Call::Requeue, request, || saved_reply::requeued(&out)).await?;
        Ok(Ok(out))
    }

    /// All that has to be known of the first letters before they are moved; at least of one.
    async fn candidates(
        &self,
        queue: &Queue,
        letters: &[Result<Letter, JobId>],
        mut room: usize,
        gone: &mut HashSet<record::Number>,
    ) -> Result<Vec<Result<Candidate, JobId>>, StoreError> {
        let letters = &letters[..letters.len().min(CANDIDATES_MAX)];
        let found = letters.iter().filter_map(|letter| letter.as_ref().ok());
        let numbers: Vec<_> = found.map(|letter| letter.number).collect();
        let show = Show { full: true, attempts: false };
        let mut views = self.views(queue, &numbers, show).await?.into_iter();
        let mut candidates = Vec::with_capacity(letters.len());
        for letter in letters {
            let letter = match letter {
                Ok(letter) => letter.clone(),
                Err(id) => {
                    candidates.push(Err(id.clone()));
                    continue;
                }
            };
            let Some(view) = views.next().flatten() else {
                candidates.push(Err(codec::unreadable(letter.number.0).id));
                continue;
            };
            let id = view.spec.id.clone();
            let view = if view.corrupt || letter.reason == DeadReason::Corrupt {
                Err(SkipReason::DataCorrupt)
            } else if gone.insert(letter.number) {
                Ok(Box::new(view))
            } else {
                // Whoever was named before is gone, in a dry run too.
                Err(SkipReason::JobNotFound)
            };
            let candidate = Candidate { id, letter, view };
            let left = room.checked_sub(candidate.body_bytes());
            candidates.push(Ok(candidate));
            match left {
                Some(left) => room = left,
                None => break,
            }
        }
        Ok(candidates)
    }

    /// DEAD → READY in the same queue. For each candidate why it was passed over, if it was.
    async fn revive(
        &self,
        queue: &Queue,
        candidates: &[Result<Candidate, JobId>],
        requeue: &Requeue,
    ) -> Result<Vec<Option<SkipReason>>, StoreError> {
        let mut args: Vec<Arg> = vec![requeue.dry_run.into()];
        let (now, mut asked) = (self.now(), 0);
        for candidate in candidates.iter().flatten() {
            let Ok(view) = &candidate.view else { continue };
            asked += 1;
            let (number, spec) = (candidate.letter.number, &view.spec);
            let mut progress = view.progress.clone();
            progress.requeue(now, spec.expires_at, requeue.keep_attempts);
            let past = sizes::of_past(&progress, view.last_failure.as_ref());
            args.extend([
                number.bytes().into(),
                candidate.letter.death.into(),
                print_of(view).into(),
                record::tie(number, &spec.id).into(),
                u64::from(record::level(spec.priority)).into(),
                record::progress(&progress, past).into(),
                spec.id.to_string().as_str().into(),
                progress.deadline(spec.expires_at).is_some().into(),
            ]);
            if let Some(at) = progress.deadline(spec.expires_at).filter(|_| !requeue.dry_run) {
                self.agenda.note(queue.number, at);
            }
        }
        if asked == 0 {
            return Ok(vec![None; candidates.len()]);
        }
        let (_, mut reply) = self.run(&REVIVE, queue, args).await?;
        let available = reply.int()?;
        let mut skipped = Vec::with_capacity(candidates.len());
        for candidate in candidates {
            let was_asked = candidate.as_ref().is_ok_and(|candidate| candidate.view.is_ok());
            skipped.push(match if was_asked { reply.int()? } else { 0 } {
                0 => None,
                1 => Some(SkipReason::JobNotFound),
                _ => Some(SkipReason::KeyTaken),
            });
        }
        self.tell(queue, available).await;
        Ok(skipped)
    }

    /// DEAD here → READY there.
    async fn send(
        self: &Arc<Self>,
        from: &Arc<Queue>,
        to: &Arc<Queue>,
        candidates: &[Result<Candidate, JobId>],
        requeue: &Requeue,
    ) -> Result<Vec<Option<SkipReason>>, StoreError> {
        let bound =
            |death| Bound { to: to.name.clone(), keep_attempts: requeue.keep_attempts, death };
        let mut skipped = Vec::with_capacity(candidates.len());
        for candidate in candidates {
            skipped.push(match candidate {
                Ok(Candidate { letter, view: Ok(view), .. }) if requeue.dry_run => {
                    self.would_arrive(from, to, letter.number, view, &bound(letter.death)).await?
                }
                Ok(Candidate { letter, view: Ok(_), .. }) => {
                    self.move_one(from, letter, &bound(letter.death)).await?
                }
                _ => None,
            });
        }
        Ok(skipped)
    }

    pub(super) async fn purge(
        &self,
        purge: Purge,
    ) -> Result<Result<Purged, PurgeRefused>, StoreError> {
        let begun = match self.earlier_reply(Call::Purge, purge.request.as_ref()).await? {
            Earlier::Nothing => None,
            Earlier::Begun(choice) => Some(choice),
            Earlier::Answered(record) => return Ok(Ok(saved_reply::read_purged(&record))),
            Earlier::Another => return Ok(Err(PurgeRefused::RequestIdTaken)),
        };
        let Some(queue) = self.find(&purge.part.queue).await? else {
            return Ok(Err(PurgeRefused::NoSuchQueue));
        };
        let bulk = Bulk {
            call: Call::Purge,
            request: purge.request.as_ref().filter(|_| !purge.dry_run),
            part: &purge.part,
            which: &purge.which,
        };
        let Plan { picked, done } = self.plan(&queue, bulk, begun).await?;
        let mut out = Purged { has_more: picked.has_more, left: picked.left, ..Purged::default() };
        // Whoever was named before is gone, in a dry run too.
        let mut gone = HashSet::new();
        let mut letters = Vec::new();
        let named: &[JobId] = match &purge.which {
            Which::Ids(ids) => ids,
            _ => &[],
        };
        for (at, letter) in picked.letters.into_iter().enumerate() {
            match letter {
                Ok(letter) if gone.insert(letter.number) => letters.push(letter),
                Ok(_) => {
                    let id = named.get(at).cloned();
                    out.skipped.extend(id.map(|id| (id, SkipReason::JobNotFound)));
                }
                Err(id) => out.skipped.push((id, SkipReason::JobNotFound)),
            }
        }
        out.count = if purge.dry_run {
            letters.len() as u64
        } else {
            (done.len() + self.purge_letters(&queue, "purged", &letters).await?) as u64
        };
        if !purge.dry_run && out.count > 0 {
            self.made_room(&queue).await?;
        }
        let request = purge.request.as_ref();
        self.keep_reply(Call::Purge, request, || saved_reply::purged(&out)).await?;
        Ok(Ok(out))
    }
}

/// The print of a job, only where it is kept: large bodies take their time.
pub(super) fn print_of(view: &JobView) -> Vec<u8> {
    let spec = &view.spec;
    let kept = spec.key.is_some();
    if kept { record::print(spec.sameness()) } else { vec![0; 32] }
}

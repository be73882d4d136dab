//! Which dead letters a call means, decided in one place for all calls that do something to them.

use super::{
    Core,
    look::Show,
    record::{self, Number},
    registry::Queue,
    reply::{Reply, bytes_of},
    scripts::PURGE,
};
use crate::{
    domain::{
        dead_filter::DeadFilter,
        ids::{DeadPart, JobId},
        job::DeadReason,
        time::Timestamp,
    },
    store::{DeadLetterPage, DeadLetterQuery, Deaths, JobView, Search, StoreError, Which, sizes},
};
use std::{collections::HashMap, sync::Arc};

/// Dead letters that one script or command looks at or removes.
pub(super) const LETTERS_MAX: usize = 100;
/// Records that one filtered call looks at: each is read here.
const LOOK_AT_MAX: usize = 1_000;
/// Places are doubles: a number beyond them is the end.
const PLACES_MAX: u64 = 1 << 53;

/// A dead letter, found.
#[derive(Clone, Debug)]
pub(super) struct Letter {
    pub(super) death: u64,
    /// In the order of death. The same number, unless something is damaged: who goes through them goes by this one.
    pub(super) place: u64,
    pub(super) number: Number,
    pub(super) reason: DeadReason,
    pub(super) died_at: Timestamp,
    pub(super) counted_as: String,
}

/// What a call means.
#[derive(Debug)]
pub(super) struct Picked {
    /// In their order; an id that is not among the dead letters stands for itself.
    pub(super) letters: Vec<Result<Letter, JobId>>,
    pub(super) has_more: bool,
    pub(super) left: Deaths,
}

impl Core {
    /// Dead letters in their order of death, those after one and up to another.
    pub(super) async fn letters(
        &self,
        queue: &Queue,
        overflow_only: bool,
        after: u64,
        up_to: u64,
        limit: usize,
    ) -> Result<Vec<Letter>, StoreError> {
        let key = queue.keys.of(if overflow_only { b'v' } else { b'd' });
        let mut letters = Vec::new();
        let mut after = after;
        while letters.len() < limit && after < PLACES_MAX {
            let wanted = (limit - letters.len()).min(LETTERS_MAX);
            let mut command = redis::cmd("ZRANGE");
            let end = if up_to > PLACES_MAX { "+inf".to_owned() } else { up_to.to_string() };
            command.arg(key).arg(format!("({after}")).arg(end).arg("BYSCORE");
            command.arg("LIMIT").arg(0).arg(wanted).arg("WITHSCORES");
            let mut reply = Reply::of(self.redis.command(key, command).await?)?;
            let mut places = HashMap::with_capacity(wanted);
            let mut numbers = Vec::with_capacity(wanted);
            while reply.left() > 0 {
                let number = Number::read(&reply.bytes()?);
                // Whether or not anything is found there: the next look begins behind it.
                after = place(&reply.bytes()?);
                places.insert(number, after);
                numbers.push(number);
            }
            for (number, record) in self.deaths(queue, &numbers).await? {
                if let Some(letter) = letter(number, &record) {
                    let place = places.get(&number).copied().unwrap_or(letter.death);
                    letters.push(Letter { place, ..letter });
                }
            }
            if numbers.len() < wanted {
                break;
            }
        }
        Ok(letters)
    }

    /// How these jobs died; those that have not are left out.
    pub(super) async fn deaths(
        &self,
        queue: &Queue,
        numbers: &[Number],
    ) -> Result<Vec<(Number, Vec<u8>)>, StoreError> {
        if numbers.is_empty() {
            return Ok(Vec::new());
        }
        let key = queue.keys.of(b'g');
        let mut command = redis::cmd("HMGET");
        command.arg(key);
        for number in numbers {
            command.arg(number.bytes());
        }
        let mut reply = Reply::of(self.redis.command(key, command).await?)?;
        let mut deaths = Vec::new();
        for number in numbers {
            let record = reply.bytes()?;
            if !record.is_empty() {
                deaths.push((*number, record));
            }
        }
        Ok(deaths)
    }

    /// The newest death there has been.
    pub(super) async fn newest_death(&self, queue: &Queue) -> Result<u64, StoreError> {
        let key = queue.keys.of(b's');
        let mut command = redis::cmd("HGET");
        command.arg(key).arg("deaths");
        let deaths = bytes_of(self.redis.command(key, command).await?).unwrap_or_default();
        Ok(std::str::from_utf8(&deaths).ok().and_then(|text| text.parse().ok()).unwrap_or(0))
    }

    pub(super) async fn pick(
        &self,
        queue: &Queue,
        part: &DeadPart,
        which: &Which,
    ) -> Result<Picked, StoreError> {
        let newest = self.newest_death(queue).await?;
        let all = Deaths { after: 0, up_to: newest };
        match which {
            Which::Ids(ids) => {
                let mut letters = Vec::with_capacity(ids.len());
                for id in ids {
                    let letter = self.letter_of(queue, id, part.overflow_only).await?;
                    letters.push(letter.ok_or_else(|| id.clone()));
                }
                Ok(Picked { letters, has_more: false, left: all })
            }
            Which::Oldest { limit, among } => {
                let among = among.unwrap_or(all);
                self.oldest(queue, part.overflow_only, None, *limit, among).await
            }
            Which::Found { search, limit, among } => {
                let among = among.unwrap_or(all);
                self.oldest(queue, part.overflow_only, Some(search), *limit, among).await
            }
        }
    }

    async fn letter_of(
        &self,
        queue: &Queue,
        id: &JobId,
        overflow_only: bool,
    ) -> Result<Option<Letter>, StoreError> {
        let Some(number) = self.number_in(queue, id).await? else { return Ok(None) };
        let death = self.deaths(queue, &[number]).await?.pop();
        let Some((_, record)) = death else { return Ok(None) };
        let overflow = record::read_death(&record).is_some_and(|(death, _)| death.overflow);
        Ok(letter(number, &record).filter(|_| overflow || !overflow_only))
    }

    async fn oldest(
        &self,
        queue: &Queue,
        overflow_only: bool,
        search: Option<&Search>,
        limit: usize,
        among: Deaths,
    ) -> Result<Picked, StoreError> {
        let look_at = search.map_or(limit, |search| search.look_at.min(LOOK_AT_MAX));
        let mut picked = Picked { letters: Vec::new(), has_more: false, left: among };
        let mut looked_at = 0;
        loop {
            let wanted = (look_at - looked_at).saturating_add(1).min(LETTERS_MAX);
            let letters =
                self.letters(queue, overflow_only, picked.left.after, among.up_to, wanted).await?;
            let last = letters.len() < wanted;
            let fits = self.fitting(queue, &letters, search.map(|search| &search.filter)).await?;
            for (letter, fits) in letters.into_iter().zip(fits) {
                if looked_at == look_at || picked.letters.len() == limit {
                    picked.has_more = true;
                    return Ok(picked);
                }
                looked_at += 1;
                picked.left.after = letter.place;
                if fits {
                    picked.letters.push(Ok(letter));
                }
            }
            if last {
                return Ok(picked);
            }
        }
    }

    /// Which of them the filter means. Reads no more of the jobs than it asks about.
    async fn fitting(
        &self,
        queue: &Queue,
        letters: &[Letter],
        filter: Option<&DeadFilter>,
    ) -> Result<Vec<bool>, StoreError> {
        let Some(filter) = filter else { return Ok(vec![true; letters.len()]) };
        let by_death = |letter: &Letter| filter.fits_death(letter.reason, letter.died_at);
        let wanted: Vec<_> =
            letters.iter().filter(|letter| by_death(letter)).map(|letter| letter.number).collect();
        let show = Show { full: false, attempts: false };
        let mut views = self.views(queue, &wanted, show).await?.into_iter();
        Ok(letters
            .iter()
            .map(|letter| {
                by_death(letter)
                    && views.next().flatten().is_some_and(|view| {
                        filter.fits_job(&view.spec.job_type, view.last_failure.as_ref())
                    })
            })
            .collect())
    }

    /// Dead letters go for good; says how many.
    pub(super) async fn purge_letters(
        &self,
        queue: &Queue,
        counter: &str,
        letters: &[Letter],
    ) -> Result<usize, StoreError> {
        let mut gone = 0;
        for letters in letters.chunks(LETTERS_MAX) {
            let mut args = vec![counter.into()];
            for letter in letters {
                args.extend([letter.number.bytes().into(), letter.death.into()]);
            }
            let (_, mut reply) = self.run(&PURGE, queue, args).await?;
            while reply.left() > 0 {
                gone += usize::from(reply.int()? == 0);
            }
        }
        Ok(gone)
    }

    pub(super) async fn dead_letters(
        &self,
        query: DeadLetterQuery,
    ) -> Result<Option<DeadLetterPage>, StoreError> {
        let Some(queue) = self.find(&query.part.queue).await? else { return Ok(None) };
        let key = queue.keys.of(if query.part.overflow_only { b'v' } else { b'd' });
        let mut command = redis::cmd("ZCARD");
        command.arg(key);
        let total = match self.redis.command(key, command).await? {
            redis::Value::Int(total) => total.cast_unsigned(),
            _ => 0,
        };
        let mut page = DeadLetterPage { jobs: Vec::new(), next: None, total };
        if query.limit > 0 {
            self.fill(&queue, &query, &mut page).await?;
        }
        Ok(Some(page))
    }

    async fn fill(
        &self,
        queue: &Arc<Queue>,
        query: &DeadLetterQuery,
        page: &mut DeadLetterPage,
    ) -> Result<(), StoreError> {
        let filter = query.search.as_ref().map(|search| &search.filter);
        let look_at =
            query.search.as_ref().map_or(query.limit, |search| search.look_at.min(LOOK_AT_MAX));
        let (mut bytes, mut looked_at, mut last) = (0, 0, query.after);
        let show = Show { full: query.full, attempts: true };
        loop {
            // Few at a time where they are large.
            let most = if query.full { LETTERS_MAX / 4 } else { LETTERS_MAX };
            let wanted = (look_at - looked_at).saturating_add(1).min(most);
            let overflow_only = query.part.overflow_only;
            let letters = self.letters(queue, overflow_only, last, u64::MAX, wanted).await?;
            let at_the_end = letters.len() < wanted;
            let fits = self.fitting(queue, &letters, filter).await?;
            let fitting = letters.iter().zip(&fits).filter(|(_, fits)| **fits);
            let numbers: Vec<_> = fitting.map(|(letter, _)| letter.number).collect();
            let mut views = self.views(queue, &numbers, show).await?.into_iter();
            for (letter, fits) in letters.iter().zip(fits) {
                let view: Option<JobView> = if fits { views.next().flatten() } else { None };
                if looked_at == look_at {
                    page.next = Some(last);
                    return Ok(());
                }
                looked_at += 1;
                if let Some(view) = view {
                    bytes += sizes::of_view(&view);
                    let full = !page.jobs.is_empty() && bytes > query.max_bytes;
                    if page.jobs.len() == query.limit || full {
                        page.next = Some(last);
                        return Ok(());
                    }
                    page.jobs.push(view);
                }
                last = letter.place;
            }
            if at_the_end {
                return Ok(());
            }
        }
    }
}

pub(super) fn letter(number: Number, record: &[u8]) -> Option<Letter> {
    let (death, counted_as) = record::read_death(record)?;
    let (reason, died_at) = (death.reason, death.died_at);
    let (death, place) = (death.number, death.number);
    Some(Letter { death, place, number, reason, died_at, counted_as })
}

/// Of a score, which is a whole number unless it is damaged: never one before it.
fn place(score: &[u8]) -> u64 {
    let score = std::str::from_utf8(score).ok().and_then(|score| score.parse::<f64>().ok());
    score.map_or(PLACES_MAX, |score| score.ceil() as u64)
}

//! What a bulk call with a request id is about to do, written down before it does the first of it.
//!
//! Such a call is many scripts. If its server dies between two of them, whoever repeats the call completes what the first
//! one chose, and does nothing to any other job.

use super::{
    Core,
    dead::{LETTERS_MAX, Letter, Picked, letter},
    look::Show,
    record::Number,
    registry::Queue,
    replies::Call,
};
use crate::{
    domain::ids::{DeadPart, JobId},
    store::{
        Deaths, RequestId, StoreError, Which, codec,
        notation::{Damaged, Read, Reader, put_text, put_u64},
    },
};
use std::collections::{HashMap, HashSet};

/// What a call means, and how it is called.
pub(super) struct Bulk<'a> {
    pub(super) call: Call,
    /// None: it will not be repeated, or does nothing.
    pub(super) request: Option<&'a RequestId>,
    pub(super) part: &'a DeadPart,
    pub(super) which: &'a Which,
}

/// What there is to do.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) picked: Picked,
    /// Those that were chosen the first time and are not dead any more: that call has dealt with them.
    pub(super) done: Vec<JobId>,
}

/// One that was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Chosen {
    Letter {
        number: Number,
        death: u64,
        id: JobId,
    },
    /// It was named, and is not among the dead letters.
    Unknown(JobId),
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Choice {
    chosen: Vec<Chosen>,
    has_more: bool,
    left: Deaths,
}

impl Choice {
    fn write(&self) -> Vec<u8> {
        let mut out = vec![codec::VERSION];
        put_u64(&mut out, self.chosen.len() as u64);
        for chosen in &self.chosen {
            match chosen {
                Chosen::Letter { number, death, id } => {
                    put_u64(&mut out, *death);
                    put_u64(&mut out, number.0);
                    put_text(&mut out, &id.to_string());
                }
                // No death has this number.
                Chosen::Unknown(id) => {
                    put_u64(&mut out, 0);
                    put_text(&mut out, &id.to_string());
                }
            }
        }
        out.push(u8::from(self.has_more));
        put_u64(&mut out, self.left.after);
        put_u64(&mut out, self.left.up_to);
        codec::seal(out)
    }

    /// Of a damaged choice nothing more is done.
    fn read(record: &[u8]) -> Self {
        let read = || -> Read<Self> {
            let mut read = codec::open(record)?;
            let count = read.u64()?;
            let chosen = (0..count).map(|_| read_chosen(&mut read)).collect::<Read<_>>()?;
            let has_more = read.u8()? == 1;
            let left = Deaths { after: read.u64()?, up_to: read.u64()? };
            read.end()?;
            Ok(Self { chosen, has_more, left })
        };
        read().unwrap_or_default()
    }
}

fn read_chosen(read: &mut Reader<'_>) -> Result<Chosen, Damaged> {
    Ok(match read.u64()? {
        0 => Chosen::Unknown(JobId::parse(&read.text()?)),
        death => {
            let number = Number(read.u64()?);
            Chosen::Letter { number, death, id: JobId::parse(&read.text()?) }
        }
    })
}

impl Core {
    /// Chooses, or takes up what was chosen when the call came first.
    pub(super) async fn plan(
        &self,
        queue: &Queue,
        bulk: Bulk<'_>,
        begun: Option<Vec<u8>>,
    ) -> Result<Plan, StoreError> {
        if let Some(record) = begun {
            return self.take_up(queue, Choice::read(&record)).await;
        }
        let picked = self.pick(queue, bulk.part, bulk.which).await?;
        if let Some(request) = bulk.request {
            let choice = self.choice(queue, &picked).await?;
            self.keep_begun(bulk.call, request, &choice.write()).await?;
        }
        Ok(Plan { picked, done: Vec::new() })
    }

    /// With the ids, which are not to be had any more when the jobs are gone.
    async fn choice(&self, queue: &Queue, picked: &Picked) -> Result<Choice, StoreError> {
        let found: Vec<_> = picked.letters.iter().flatten().map(|letter| letter.number).collect();
        let show = Show { full: false, attempts: false };
        let mut views = self.views(queue, &found, show).await?.into_iter();
        let mut chosen = Vec::with_capacity(picked.letters.len());
        for letter in &picked.letters {
            chosen.push(match letter {
                Err(id) => Chosen::Unknown(id.clone()),
                Ok(Letter { number, death, .. }) => {
                    let view = views.next().flatten();
                    let id = view.map_or_else(|| codec::unreadable(number.0).id, |it| it.spec.id);
                    Chosen::Letter { number: *number, death: *death, id }
                }
            });
        }
        Ok(Choice { chosen, has_more: picked.has_more, left: picked.left })
    }

    async fn take_up(&self, queue: &Queue, choice: Choice) -> Result<Plan, StoreError> {
        let mut dead = self.still_dead(queue, &choice).await?;
        let mut seen = HashSet::new();
        let (mut letters, mut done) = (Vec::new(), Vec::new());
        for chosen in choice.chosen {
            match chosen {
                Chosen::Unknown(id) => letters.push(Err(id)),
                // It was named twice.
                Chosen::Letter { number, id, .. } if !seen.insert(number) => letters.push(Err(id)),
                // One that has died again since then is another dead letter.
                Chosen::Letter { number, death, id } => {
                    match dead.remove(&number).filter(|letter| letter.death == death) {
                        Some(letter) => letters.push(Ok(letter)),
                        None => done.push(id),
                    }
                }
            }
        }
        let picked = Picked { letters, has_more: choice.has_more, left: choice.left };
        Ok(Plan { picked, done })
    }

    async fn still_dead(
        &self,
        queue: &Queue,
        choice: &Choice,
    ) -> Result<HashMap<Number, Letter>, StoreError> {
        let numbers = choice.chosen.iter().filter_map(|chosen| match chosen {
            Chosen::Letter { number, .. } => Some(*number),
            Chosen::Unknown(_) => None,
        });
        let mut dead = HashMap::new();
        for numbers in numbers.collect::<Vec<_>>().chunks(LETTERS_MAX) {
            for (number, record) in self.deaths(queue, numbers).await? {
                dead.extend(letter(number, &record).map(|letter| (number, letter)));
            }
        }
        Ok(dead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_reads_back_and_a_damaged_one_is_empty() {
        let letter = Chosen::Letter { number: Number(1 << 40), death: 7, id: JobId::parse("a") };
        let chosen = vec![letter, Chosen::Unknown(JobId::parse("b"))];
        let left = Deaths { after: 7, up_to: 1 << 50 };
        let choice = Choice { chosen, has_more: true, left };
        let mut record = choice.write();
        assert_eq!(Choice::read(&record), choice);
        record[3] ^= 1;
        assert_eq!(Choice::read(&record), Choice::default());
    }
}

//! Fences and writes of a batch as apply.lua gets them.

use super::*;

/// In the positions that lib.lua and groups.lua name.
const FIXED: [Key; 6] = [
    STATE,
    Key::Index(Index::Ready),
    Key::Index(Index::Scheduled),
    Key::Index(Index::Retrying),
    Key::Index(Index::Keyed),
    HEADS,
];

/// Those of them that a script has.
pub(in crate::store::redis) fn fixed(has_groups: bool) -> &'static [Key] {
    if has_groups { &FIXED } else { &FIXED[..4] }
}

impl Columns {
    /// `has_groups`: for the script that knows groups.
    pub(in crate::store::redis) fn of_batch(batch: &Batch, has_groups: bool) -> Self {
        let mut columns = Self::new(fixed(has_groups));
        for (at, fence) in batch.fences.iter().enumerate() {
            columns.fence(at, fence);
        }
        columns.fences = columns.columns.len();
        for write in &batch.writes {
            columns.writing(write);
        }
        // A queue that never had a group does not look for any.
        if batch.writes.iter().any(gives_group) {
            columns.join("HSET", STATE, ["keyed".into(), "1".into()]);
        }
        columns
    }

    fn fence(&mut self, at: usize, fence: &Fence) {
        let whole = |bytes: &Bytes| Some(bytes.to_vec());
        let (kind, key, field, wanted) = match fence {
            Fence::Begins(table, key, bytes) => ("BEGINS", Key::table(*table), field(*table, key), whole(bytes)),
            Fence::Tell(table, key, bytes) => ("TELL", Key::table(*table), field(*table, key), whole(bytes)),
            Fence::Is(table, key, bytes) => ("IS", Key::table(*table), field(*table, key), whole(bytes)),
            Fence::Absent(table, key) => ("ABSENT", Key::table(*table), field(*table, key), None),
            Fence::At(index, entry) => ("AT", Key::Index(*index), entry.member.bytes(*index), Some(score(entry.score))),
            Fence::Room { of, minus, add, limit } => {
                let (key, command) = key_of(*of);
                let mut args = vec![decimal(*add), decimal(*limit), command.into()];
                for len in *minus {
                    let (key, command) = key_of(*len);
                    args.extend([command.into(), self.key_argument(key)]);
                }
                return self.alone("ROOM", key, args, at);
            }
        };
        // Of the state, what is empty stands for what is absent.
        let of_state = match (kind, &wanted) {
            ("IS", Some(record)) => !record.is_empty(),
            (kind, _) => kind == "ABSENT",
        };
        let column = match key == STATE && of_state && self.state.args.len() < STATE_MAX {
            true => &mut self.state,
            false => self.joined(kind, key, 2),
        };
        let empty = (column.kind.is_empty() && wanted.is_none()).then(Arg::default);
        column.args.push(field);
        column.wanted.extend(wanted.or(empty));
        column.of.push(at);
    }

    /// Heads follow from the versions of groups.
    fn follow_version(&mut self, table: Table, key: &RecordKey) {
        if let (Table::Version, RecordKey::Group(group)) = (table, key)
            && is_of_group(*group)
        {
            self.join("VERSION", STATE, [key.bytes()]);
        }
    }

    fn writing(&mut self, write: &Write) {
        match write {
            Write::Put(table, key, record) => {
                self.join("HSET", Key::table(*table), [field(*table, key), record.to_vec()]);
                self.follow_version(*table, key);
                if matches!(key, RecordKey::Part(_, part) if *part > last_part(*table)) {
                    self.join("HSET", STATE, ["parts".into(), decimal(u64::from(u8::MAX))]);
                }
            }
            Write::PutLease { number, expires_at, record } => {
                let key = RecordKey::Number(*number).bytes();
                self.join("HSET", Key::Table(Table::Lease), [key.clone(), record.to_vec()]);
                let group = lease_group(record);
                if group != NO_GROUP {
                    self.join("ZADD", Key::Index(Index::LeasedByGroup), [decimal(group.into()), key.clone()]);
                }
                self.join("ZADD", Key::Index(Index::Leased), [score(expires_at.millis()), key]);
            }
            Write::Delete(table, key) => {
                self.join("HDEL", Key::table(*table), [field(*table, key)]);
                self.follow_version(*table, key);
                if *table == Table::Lease {
                    self.join("ZREM", Key::Index(Index::Leased), [key.bytes()]);
                }
            }
            Write::DeleteParts(table, number) => {
                let kind = match table {
                    Table::Failure => "FAILURES",
                    Table::Event => "EVENTS",
                    _ => "ATTEMPTS",
                };
                let column = self.joined(kind, Key::table(*table), 2);
                if column.args.is_empty() {
                    column.args.push(decimal(u64::from(last_part(*table))));
                }
                column.args.push(RecordKey::Number(*number).bytes());
            }
            Write::Insert(index, entry) => {
                self.join("ZADD", Key::Index(*index), [score(entry.score), entry.member.bytes(*index)]);
            }
            Write::Remove(index, entry) => self.join("ZREM", Key::Index(*index), [entry.member.bytes(*index)]),
            Write::Extend { number, expires_at } => {
                let key = RecordKey::Number(*number).bytes();
                self.join("EXTEND", Key::Index(Index::Leased), [score(expires_at.millis()), key]);
            }
            Write::AppendDead { index, number, record } => {
                let (index, key) = (self.key_argument(Key::Index(*index)), RecordKey::Number(*number).bytes());
                self.join("APPEND", Key::Table(Table::Dead), [index, key, record.to_vec()]);
            }
            Write::Add(Counter::ErrorType(text), delta) => {
                self.join("ADD", ERROR_TYPES, [text.as_bytes().to_vec(), delta.to_string().into_bytes()]);
            }
            Write::Add(Counter::Total(which), delta) => *of(&mut self.added, total(*which)) += delta,
            Write::Raise(which, to) => {
                let raised = of(&mut self.raised, mark(*which));
                *raised = to.millis().min(SCORE_MAX).max(*raised);
            }
            Write::Count { epoch, sums, at } => match self.sums.iter_mut().find(|(of, ..)| of == epoch) {
                Some((_, all, last)) => {
                    all.add(sums);
                    *last = (*last).max(*at);
                }
                None => self.sums.push((*epoch, *sums, *at)),
            },
            Write::ForgetSums(epoch) => self.join("HDEL", STATE, [sums_field(*epoch)]),
            Write::Promote(limit) => {
                let limit = (*limit).min(PROMOTED_MAX) as u64;
                self.alone("PROMOTE", STATE, vec![decimal(limit)], 0);
            }
        }
    }

    /// What apply.lua says, its first number apart.
    pub(in crate::store::redis) fn done(&self, reply: &mut Reply) -> Result<Done> {
        let (ready, promoted) = (reply.count()?, reply.count()? as usize);
        let mut done = Done { ready, promoted, ..Done::default() };
        let mut told = Vec::new();
        for Column { kind, args, of, .. } in &self.columns {
            match *kind {
                "TELL" => {
                    for at in of {
                        told.push((*at, reply.bytes()?.unwrap_or_default()));
                    }
                }
                "EXTEND" => {
                    for _ in 0..args.len() / 2 {
                        done.raised.push(Timestamp::from_millis(reply.score()?.unwrap_or_default()));
                    }
                }
                "APPEND" => {
                    for _ in 0..args.len() / 3 {
                        done.deaths.push(reply.count()?);
                    }
                }
                _ => {}
            }
        }
        told.sort_unstable_by_key(|(at, _)| *at);
        done.told = told.into_iter().map(|(_, record)| record).collect();
        Ok(done)
    }

    /// Which fences failed, and what they found.
    pub(in crate::store::redis) fn changed(&self, batch: &Batch, reply: &mut Reply) -> Result<Applied> {
        let columns = [&self.state].into_iter().chain(&self.columns);
        let order: Vec<usize> = columns.flat_map(|column| &column.of).copied().collect();
        let mut failed = Vec::with_capacity(reply.left() / 2);
        while reply.left() > 0 {
            let at = *order.get(reply.count()? as usize).ok_or_else(unexpected)?;
            let was = match batch.fences.get(at).ok_or_else(unexpected)? {
                Fence::At(..) => Was::Score(reply.score()?),
                Fence::Room { .. } => Was::Len(reply.int()?.max(0).cast_unsigned()),
                _ => Was::Record(bytes_of(reply.value()?)?),
            };
            failed.push((at, was));
        }
        failed.sort_unstable_by_key(|(at, _)| *at);
        Ok(Applied::Changed(failed))
    }
}

/// It changes what of a group may be handed out.
pub(in crate::store::redis) fn concerns_groups(write: &Write) -> bool {
    match write {
        Write::Insert(Index::Keyed, _) | Write::Remove(Index::Keyed, _) => true,
        Write::Put(Table::Version, RecordKey::Group(group), _)
        | Write::Delete(Table::Version, RecordKey::Group(group)) => is_of_group(*group),
        write => gives_group(write),
    }
}

fn is_of_group(group: u16) -> bool {
    ![NO_GROUP, WHOLE_QUEUE].contains(&group)
}

/// A job with a group waits from now on.
fn gives_group(write: &Write) -> bool {
    matches!(write, Write::Insert(_, Entry { member: Member::Position(position), .. }) if position.group != NO_GROUP)
}

pub(in crate::store::redis) fn publish(publish: Publish) -> &'static str {
    match publish {
        Publish::Never => "never",
        Publish::IfFirst => "first",
        Publish::Always => "always",
    }
}

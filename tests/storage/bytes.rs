//! Keys, members and positions as bytes.

use redrive::domain::Timestamp;
use redrive::store::storage::*;

#[test]
fn members_and_keys_read_back() {
    let position = Position {
        group: 0,
        rank: 200,
        ready_at: Timestamp::from_millis(1_800_000_000_123),
        number: 0xffff_ffff_fffe,
        tag: 1,
    };
    let record = Member::Record(Table::Request, RecordKey::Text("a:b".into()));
    for (index, member) in [
        (Index::Ready, Member::Position(position)),
        (Index::Retrying, Member::Position(position)),
        (Index::Leased, Member::Number(7)),
        (Index::Probe, Member::Probe { epoch: 9, number: 8 }),
        (Index::FinishedKey, Member::Text("key".into())),
        (Index::Expires, record),
        (Index::Expires, Member::Record(Table::Move, RecordKey::Number(3))),
    ] {
        assert_eq!(Member::read(index, &member.bytes(index)), Some(member));
    }
    for table in Table::ALL {
        assert_eq!(Table::of_letter(table.letter() as u8), Some(table));
    }
    let part = RecordKey::Part(5, 3);
    assert_eq!(RecordKey::read(Table::Attempt, &part.bytes()), Some(part));
}

#[test]
fn bytes_of_positions_sort_as_positions_do() {
    let at =
        |rank, millis, number| Position { group: 0, rank, ready_at: Timestamp::from_millis(millis), number, tag: 0 };
    let ordered = [at(0, 9, 9), at(1, 1, 300), at(1, 256, 1), at(1, 256, 2), at(200, 0, 0)];
    for pair in ordered.windows(2) {
        assert!(pair[0] < pair[1] && pair[0].bytes() < pair[1].bytes());
    }
}

#[test]
fn a_version_reads_back_and_a_new_one_is_absent() {
    let version = Version { state: GroupState::Held, epoch: 7, random: [3; 8] };
    assert_eq!(Version::read(Some(&version.bytes())), version);
    assert_eq!(Version::read(None), Version::default());
    assert!(matches!(Version::default().fence(0), Fence::Absent(..)));
}

//! Which slot of a Cluster a key belongs to.

pub(super) const SLOTS: u16 = 16_384;

/// CRC16 (XMODEM) of the hash tag, or of the whole key where there is none.
pub(super) fn of(key: &[u8]) -> u16 {
    crc16(tag(key)) % SLOTS
}

/// What stands between the first `{` and the next `}`, unless that is nothing.
fn tag(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|byte| *byte == b'{') else {
        return key;
    };
    let inside = &key[open + 1..];
    match inside.iter().position(|byte| *byte == b'}') {
        Some(length @ 1..) => &inside[..length],
        _ => key,
    }
}

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        let mut crc = crc ^ (u16::from(*byte) << 8);
        for _ in 0..8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
        }
        crc
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_cluster_specification() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        // As CLUSTER KEYSLOT says.
        assert_eq!(of(b"foo"), 12_182);
        assert_eq!(of(b"rd:{foo}:ready"), 12_182);
        assert_eq!(of(b"{}foo"), crc16(b"{}foo") % SLOTS);
        assert_eq!(of(b"{foo"), crc16(b"{foo") % SLOTS);
        assert_eq!(of(b"foo{{bar}}zap"), crc16(b"{bar") % SLOTS);
    }
}

//! What is measured of a table.

/// What a figure is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Case {
    /// Lookups that hit, one key per call.
    HitsSingle,
    /// Lookups that hit, in bursts of 32.
    Hits,
    /// Lookups that miss, in bursts.
    Misses,
    /// Lookups of which 99 percent hit, in bursts.
    MostlyHits,
    /// Insertions into the full table (as many entries have been taken out before); each searches first.
    Inserts,
    /// Insertions of keys known to be absent, of methods that can make use of that.
    InsertsAbsent,
    /// Deletions by key.
    Deletes,
    /// Hits in bursts of all threads but one, which inserts and deletes as fast as it can.
    ReadersBesideWriter,
    /// The insertions and deletions of that one.
    WriterBesideReaders,
    /// Insertions from the empty table to 80 percent.
    Fill,
}

impl Case {
    /// All, in the order of reports.
    pub(super) const ALL: [Case; 10] = [
        Case::HitsSingle,
        Case::Hits,
        Case::Misses,
        Case::MostlyHits,
        Case::Inserts,
        Case::InsertsAbsent,
        Case::Deletes,
        Case::ReadersBesideWriter,
        Case::WriterBesideReaders,
        Case::Fill,
    ];

    /// Its name in reports and the CSV file.
    pub(super) fn name(self) -> &'static str {
        match self {
            Case::HitsSingle => "hits, single",
            Case::Hits => "hits",
            Case::Misses => "misses",
            Case::MostlyHits => "99 % hits",
            Case::Inserts => "inserts",
            Case::InsertsAbsent => "inserts, known absent",
            Case::Deletes => "deletes",
            Case::ReadersBesideWriter => "reads beside writer",
            Case::WriterBesideReaders => "writes beside readers",
            Case::Fill => "fill",
        }
    }

    /// Whether it is about lookups.
    pub(super) fn is_lookup(self) -> bool {
        self.unit() == "lookup/s"
    }

    /// Its unit.
    pub(super) fn unit(self) -> &'static str {
        match self {
            Case::HitsSingle | Case::Hits | Case::Misses | Case::MostlyHits | Case::ReadersBesideWriter => "lookup/s",
            Case::Inserts | Case::InsertsAbsent | Case::Fill => "insert/s",
            Case::Deletes => "delete/s",
            Case::WriterBesideReaders => "change/s",
        }
    }
}

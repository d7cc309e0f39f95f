//! The cases of a table's measurement.

/// The case of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TablesCase {
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

impl TablesCase {
    /// All, in the order of reports.
    pub(super) const ALL: [TablesCase; 10] = [
        TablesCase::HitsSingle,
        TablesCase::Hits,
        TablesCase::Misses,
        TablesCase::MostlyHits,
        TablesCase::Inserts,
        TablesCase::InsertsAbsent,
        TablesCase::Deletes,
        TablesCase::ReadersBesideWriter,
        TablesCase::WriterBesideReaders,
        TablesCase::Fill,
    ];

    /// Its name in reports and the CSV file.
    pub(super) fn name(self) -> &'static str {
        match self {
            TablesCase::HitsSingle => "hits, single",
            TablesCase::Hits => "hits",
            TablesCase::Misses => "misses",
            TablesCase::MostlyHits => "99 % hits",
            TablesCase::Inserts => "inserts",
            TablesCase::InsertsAbsent => "inserts, known absent",
            TablesCase::Deletes => "deletes",
            TablesCase::ReadersBesideWriter => "reads beside writer",
            TablesCase::WriterBesideReaders => "writes beside readers",
            TablesCase::Fill => "fill",
        }
    }

    /// Whether it is about lookups.
    pub(super) fn is_lookup(self) -> bool {
        self.unit() == "lookup/s"
    }

    /// Its unit.
    pub(super) fn unit(self) -> &'static str {
        match self {
            TablesCase::HitsSingle
            | TablesCase::Hits
            | TablesCase::Misses
            | TablesCase::MostlyHits
            | TablesCase::ReadersBesideWriter => "lookup/s",
            TablesCase::Inserts | TablesCase::InsertsAbsent | TablesCase::Fill => "insert/s",
            TablesCase::Deletes => "delete/s",
            TablesCase::WriterBesideReaders => "change/s",
        }
    }
}

// n-gram models: the hot loops of counting, linking and scoring. models/ngram and train/counting have the same
// in numpy; tests compare the two bit for bit.
//
// A tree node of order k is an n-gram; its children are contiguous in order k + 1 and sorted by their last
// word. `suffix` leads to the same n-gram without its first word, one order below. A context is a node of an
// order below the highest, and (0, 0) is the empty one. The format is docs/formats/ngram.md.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <thread>
#include <vector>

namespace {

constexpr int kMostOrder = 7;
constexpr float kLn10 = 2.302585092994046f;

using Count = std::uint64_t;

// Call piece(begin, end) for shares of `count` items, on several threads.
template <class Piece>
void divide(std::int64_t count, int threads, const Piece& piece) {
    threads = static_cast<int>(std::max<std::int64_t>(1, std::min<std::int64_t>(threads, count)));
    std::vector<std::thread> others;
    others.reserve(threads - 1);
    for (int t = 1; t < threads; ++t)
        others.emplace_back(piece, count * t / threads, count * (t + 1) / threads);
    piece(0, count / threads);
    for (std::thread& one : others) one.join();
}

// ---- counting: keys of several words each, compared from the first word on ----

template <int K>
struct Key {
    std::uint64_t part[K];
    bool operator<(const Key& other) const {
        for (int i = 0; i < K; ++i)
            if (part[i] != other.part[i]) return part[i] < other.part[i];
        return false;
    }
    bool operator==(const Key& other) const { return !std::memcmp(part, other.part, sizeof part); }
};

// Sort keys and count equal ones; the distinct ones move to the front. `spare` is as long as `keys`.
// They are dealt out by their leading bits first, so that what is then sorted fits into the caches.
template <int K>
std::int64_t count_keys(Key<K>* keys, Key<K>* spare, std::int64_t n, int leading, Count* counts) {
    constexpr int kMostBits = 16;
    const int bits = std::min(leading, kMostBits), shift = leading - bits;
    const auto bucket = [&](const Key<K>& key) { return (key.part[0] >> shift) & ((1u << bits) - 1); };
    std::vector<std::int64_t> ends((std::size_t{1} << bits) + 1, 0);
    for (std::int64_t i = 0; i < n; ++i) ++ends[bucket(keys[i]) + 1];
    for (std::size_t b = 1; b < ends.size(); ++b) ends[b] += ends[b - 1];
    std::vector<std::int64_t> place(ends.begin(), ends.end() - 1);
    for (std::int64_t i = 0; i < n; ++i) spare[place[bucket(keys[i])]++] = keys[i];
    for (std::size_t b = 0; b + 1 < ends.size(); ++b) std::sort(spare + ends[b], spare + ends[b + 1]);
    std::int64_t found = 0;
    for (std::int64_t i = 0; i < n;) {
        std::int64_t j = i + 1;
        while (j < n && spare[j] == spare[i]) ++j;
        keys[found] = spare[i];
        counts[found++] = static_cast<Count>(j - i);
        i = j;
    }
    return found;
}

template <int K>
std::int64_t merge_runs(int runs, const void* const* keys, const Count* const* counts, const std::int64_t* lengths,
                        Key<K>* out, Count* out_counts) {
    struct Head {
        Key<K> key;
        int run;
    };
    const auto later = [](const Head& a, const Head& b) { return b.key < a.key; };
    std::vector<Head> heap;
    std::vector<std::int64_t> at(runs, 0);
    const auto key_at = [&](int run, std::int64_t i) { return static_cast<const Key<K>*>(keys[run])[i]; };
    for (int run = 0; run < runs; ++run)
        if (lengths[run]) heap.push_back({key_at(run, 0), run});
    std::make_heap(heap.begin(), heap.end(), later);
    std::int64_t found = 0;
    while (!heap.empty()) {
        std::pop_heap(heap.begin(), heap.end(), later);
        const Head head = heap.back();
        const Count count = counts[head.run][at[head.run]];
        if (found && out[found - 1] == head.key) {
            out_counts[found - 1] += count;
        } else {
            out[found] = head.key;
            out_counts[found++] = count;
        }
        if (++at[head.run] < lengths[head.run]) {
            heap.back().key = key_at(head.run, at[head.run]);
            std::push_heap(heap.begin(), heap.end(), later);
        } else {
            heap.pop_back();
        }
    }
    return found;
}

// ---- the tree ----

// What a model is made of; models/ngram/native.py fills it in. Index k - 1 is order k.
struct Tables {
    std::int32_t order, vocabulary, end, word_bytes;
    const void* words[kMostOrder];
    const float* probabilities[kMostOrder];
    const float* backoffs[kMostOrder];
    const std::uint32_t* begins[kMostOrder];
    const std::uint32_t* suffixes[kMostOrder];
};

struct Context {
    std::int32_t order = 0;
    std::uint32_t node = 0;
};

template <class Word>
class Tree {
public:
    explicit Tree(const Tables& tables) : t_(tables) {}

    // Read a word: return its log10 probability and go to the longest context that the model knows.
    // The end of a document is all that its beginning knows.
    float read(Context& context, std::uint32_t word) const {
        const float found = follow(context, word);
        if (word == static_cast<std::uint32_t>(t_.end) && context.order) context = {1, word};
        return found;
    }

    float follow(Context& context, std::uint32_t word) const {
        float backed_off = 0.0f;
        while (context.order) {
            const std::uint32_t child = find(context, word);
            if (child != kNone) {
                const float found = backed_off + t_.probabilities[context.order][child];
                context = {context.order + 1, child};
                if (context.order == t_.order) shorten(context);
                return found;
            }
            backed_off += t_.backoffs[context.order - 1][context.node];
            shorten(context);
        }
        const float found = backed_off + t_.probabilities[0][word];
        context = t_.order == 1 ? Context{} : Context{1, word};
        return found;
    }

    Context locate(const std::int32_t* state, int size) const {
        Context context;
        for (int i = 0; i < size; ++i)
            if (state[i] >= 0) read(context, static_cast<std::uint32_t>(state[i]));
        return context;
    }

    // All next words at once: each takes its probability from the longest context that it was seen in.
    void spread(Context context, float* row) const {
        Context chain[kMostOrder];
        float backed_off[kMostOrder] = {0.0f};
        int length = 0;
        for (; context.order; shorten(context), ++length) {
            chain[length] = context;
            backed_off[length + 1] = backed_off[length] + t_.backoffs[context.order - 1][context.node];
        }
        for (std::int32_t w = 0; w < t_.vocabulary; ++w)
            row[w] = (backed_off[length] + t_.probabilities[0][w]) * kLn10;
        while (length--) {
            const Context& at = chain[length];
            const auto* words = static_cast<const Word*>(t_.words[at.order]);
            const float* found = t_.probabilities[at.order];
            const std::uint32_t* begin = t_.begins[at.order - 1] + at.node;
            for (std::uint32_t i = begin[0]; i < begin[1]; ++i)
                row[words[i]] = (backed_off[length] + found[i]) * kLn10;
        }
    }

private:
    static constexpr std::uint32_t kNone = 0xFFFFFFFFu;

    void shorten(Context& context) const {
        context.node = context.order == 1 ? 0 : t_.suffixes[context.order - 1][context.node];
        --context.order;
    }

    std::uint32_t find(const Context& context, std::uint32_t word) const {
        const std::uint32_t* begin = t_.begins[context.order - 1] + context.node;
        const auto* words = static_cast<const Word*>(t_.words[context.order]);
        const Word* first = words + begin[0];
        std::uint32_t length = begin[1] - begin[0];
        while (length > 8) {
            const std::uint32_t half = length / 2;
            first += first[half] <= word ? half : 0;
            length -= half;
        }
        for (std::uint32_t i = 0; i < length; ++i)
            if (first[i] == word) return static_cast<std::uint32_t>(first + i - words);
        return kNone;
    }

    const Tables& t_;
};

template <class Work>
void with_tree(const Tables& tables, const Work& work) {
    if (tables.word_bytes == 2)
        work(Tree<std::uint16_t>(tables));
    else
        work(Tree<std::uint32_t>(tables));
}

// ---- words to ids ----

// Eight bytes at a time; `limit` is the end of what may be read, which is most often beyond the word.
std::uint64_t hash_of(std::string_view word, const char* limit) {
    std::uint64_t h = 0x9E3779B97F4A7C15u ^ word.size();
    const char* at = word.data();
    for (std::size_t left = word.size(); left;) {
        std::uint64_t piece = 0;
        const std::size_t taken = std::min<std::size_t>(left, 8);
        if (limit - at >= 8) {
            std::memcpy(&piece, at, 8);
            piece &= ~std::uint64_t{0} >> (64 - 8 * taken);
        } else {
            std::memcpy(&piece, at, taken);
        }
        h = (h ^ piece) * 0xD6E8FEB86659FD93u;
        h ^= h >> 32;
        at += taken;
        left -= taken;
    }
    return h;
}

// A table of 8 bytes a slot, so that much of it stays in the caches; words are compared only where the tags agree.
class Vocabulary {
public:
    Vocabulary(const char* bytes, const std::int64_t* offsets, std::int64_t count, std::int32_t unknown)
        : bytes_(bytes, bytes + offsets[count]), offsets_(offsets, offsets + count + 1), unknown_(unknown) {
        std::size_t size = 16;
        while (size < static_cast<std::size_t>(count) * 2) size *= 2;
        slots_.assign(size, {});
        for (std::int64_t id = 0; id < count; ++id) {
            if (word(id).empty()) continue;
            const std::uint64_t hash = hash_of(word(id), bytes_.data() + bytes_.size());
            std::size_t at = hash & (size - 1);
            while (slots_[at].id >= 0) at = (at + 1) & (size - 1);
            slots_[at] = {static_cast<std::uint32_t>(hash >> 32), static_cast<std::int32_t>(id)};
        }
    }

    std::int32_t id_of(std::string_view sought, const char* limit) const {
        const std::uint64_t hash = hash_of(sought, limit);
        const auto tag = static_cast<std::uint32_t>(hash >> 32);
        for (std::size_t at = hash & (slots_.size() - 1);; at = (at + 1) & (slots_.size() - 1)) {
            const Slot& slot = slots_[at];
            if (slot.id < 0) return unknown_;
            if (slot.tag == tag && word(slot.id) == sought) return slot.id;
        }
    }

private:
    struct Slot {
        std::uint32_t tag = 0;
        std::int32_t id = -1;
    };
    std::string_view word(std::int64_t id) const {
        return {bytes_.data() + offsets_[id], static_cast<std::size_t>(offsets_[id + 1] - offsets_[id])};
    }

    std::vector<char> bytes_;
    std::vector<std::int64_t> offsets_;
    std::vector<Slot> slots_;
    std::int32_t unknown_;
};

// The length of the white space at `at` as Unicode has it (what Rust's char::is_whitespace says), or 0.
int space_at(const unsigned char* at, const unsigned char* end) {
    if (*at == ' ' || (*at >= 9 && *at <= 13)) return 1;
    if (*at < 0xC2) return 0;
    if (*at == 0xC2) return at + 1 < end && (at[1] == 0x85 || at[1] == 0xA0) ? 2 : 0;
    if (*at < 0xE1 || *at > 0xE3 || at + 2 >= end) return 0;
    const int code = (*at & 0xF) << 12 | (at[1] & 0x3F) << 6 | (at[2] & 0x3F);
    const bool is_space = code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 ||
                          code == 0x202F || code == 0x205F || code == 0x3000;
    return is_space ? 3 : 0;
}

template <class Each>
void each_word(const char* text, std::int64_t length, const Each& each) {
    const auto* at = reinterpret_cast<const unsigned char*>(text);
    const unsigned char *const end = at + length, *begin = at;
    while (at < end) {
        if (*at > ' ' && *at < 0xC2) {
            ++at;
            continue;
        }
        const int space = space_at(at, end);
        if (!space) {
            ++at;
            continue;
        }
        if (at > begin) each(std::string_view(reinterpret_cast<const char*>(begin), at - begin));
        begin = at += space;
    }
    if (end > begin) each(std::string_view(reinterpret_cast<const char*>(begin), end - begin));
}

}  // namespace

extern "C" {

// One key for each of `n` windows of `order` tokens. A window ends with its first `end` token after the first
// place, or with the last of `available` tokens; what would follow is 0. `per` ids of `bits` bits go into a word.
void windlass_ngram_windows(const std::uint32_t* tokens, std::int64_t available, std::int64_t n, int order, int bits,
                            int per, std::uint32_t end, std::uint64_t* keys) {
    const int parts = (order + per - 1) / per;
    for (std::int64_t i = 0; i < n; ++i) {
        bool open = true;
        for (int part = 0, place = 0; part < parts; ++part) {
            std::uint64_t word = 0;
            for (int slot = 0; slot < per; ++slot, ++place) {
                word <<= bits;
                if (place >= order) continue;
                open = open && i + place < available;
                if (!open) continue;
                word |= tokens[i + place];
                open = place == 0 || tokens[i + place] != end;
            }
            *keys++ = word;
        }
    }
}

std::int64_t windlass_ngram_count(void* keys, void* spare, std::int64_t n, int parts, int leading, Count* counts) {
    switch (parts) {
        case 1: return count_keys(static_cast<Key<1>*>(keys), static_cast<Key<1>*>(spare), n, leading, counts);
        case 2: return count_keys(static_cast<Key<2>*>(keys), static_cast<Key<2>*>(spare), n, leading, counts);
        case 3: return count_keys(static_cast<Key<3>*>(keys), static_cast<Key<3>*>(spare), n, leading, counts);
        default: return count_keys(static_cast<Key<4>*>(keys), static_cast<Key<4>*>(spare), n, leading, counts);
    }
}

std::int64_t windlass_ngram_merge(int runs, const void* const* keys, const Count* const* counts,
                                  const std::int64_t* lengths, int parts, void* out, Count* out_counts) {
    switch (parts) {
        case 1: return merge_runs(runs, keys, counts, lengths, static_cast<Key<1>*>(out), out_counts);
        case 2: return merge_runs(runs, keys, counts, lengths, static_cast<Key<2>*>(out), out_counts);
        case 3: return merge_runs(runs, keys, counts, lengths, static_cast<Key<3>*>(out), out_counts);
        default: return merge_runs(runs, keys, counts, lengths, static_cast<Key<4>*>(out), out_counts);
    }
}

// Find the suffix of every node of one order: of the children of parents [first, last). `suffix_of` leads from a
// parent to its own suffix, whose children lie in `words` from `begins` on; every one that is sought is there.
void windlass_ngram_link(std::int64_t first, std::int64_t last, const std::uint32_t* parent_begins,
                         const std::uint32_t* child_words, const std::uint32_t* suffix_of, const std::uint32_t* begins,
                         const std::uint32_t* words, std::uint32_t* out) {
    const std::uint32_t base = parent_begins[first];
    for (std::int64_t parent = first; parent < last; ++parent) {
        const std::uint32_t suffix = suffix_of[parent];
        const std::uint32_t *at = words + begins[suffix], *const end = words + begins[suffix + 1];
        for (std::uint32_t child = parent_begins[parent]; child < parent_begins[parent + 1]; ++child) {
            const std::uint32_t word = child_words[child];
            // The children of both are sorted, so each search goes on from the last: in doubling strides, then by halves.
            std::ptrdiff_t stride = 1;
            while (end - at > stride && at[stride] < word) stride *= 2;
            at = std::lower_bound(at + stride / 2, std::min(end, at + stride + 1), word);
            out[child - base] = static_cast<std::uint32_t>(at - words);
        }
    }
}

// Natural logarithms of the probabilities of `targets`; each of `rows` rows is read from the empty context.
void windlass_ngram_score(const Tables* tables, const std::int32_t* inputs, const std::int32_t* targets,
                          std::int64_t rows, std::int64_t length, float* out, int threads) {
    with_tree(*tables, [&](const auto& tree) {
        divide(rows, threads, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t row = begin; row < end; ++row) {
                Context context;
                for (std::int64_t i = row * length; i < (row + 1) * length; ++i) {
                    const auto input = static_cast<std::uint32_t>(inputs[i]);
                    if (i == row * length || inputs[i] != targets[i - 1]) tree.read(context, input);
                    const bool follows = i + 1 < (row + 1) * length && inputs[i + 1] == targets[i];
                    Context aside = context;
                    Context& at = follows ? context : aside;
                    out[i] = tree.read(at, static_cast<std::uint32_t>(targets[i])) * kLn10;
                }
            }
        });
    });
}

void windlass_ngram_spread(const Tables* tables, const std::int32_t* states, std::int64_t rows, int size, float* out,
                           int threads) {
    with_tree(*tables, [&](const auto& tree) {
        divide(rows, threads, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t row = begin; row < end; ++row)
                tree.spread(tree.locate(states + row * size, size), out + row * tables->vocabulary);
        });
    });
}

void* windlass_ngram_vocabulary_new(const char* bytes, const std::int64_t* offsets, std::int64_t count, int unknown) {
    return new Vocabulary(bytes, offsets, count, unknown);
}

void windlass_ngram_vocabulary_free(void* vocabulary) { delete static_cast<Vocabulary*>(vocabulary); }

// Where each of `lines` lines begins, and behind the last line feed.
void windlass_ngram_lines(const char* bytes, std::int64_t length, std::int64_t lines, std::int64_t* offsets) {
    offsets[0] = 0;
    for (std::int64_t i = 1; i < lines; ++i) {
        const void* found = std::memchr(bytes + offsets[i - 1], '\n', length - offsets[i - 1]);
        offsets[i] = static_cast<const char*>(found) - bytes + 1;
    }
    offsets[lines] = length;
}

// The log10 probability of each text as a sentence, and how many words it has, its end included.
void windlass_ngram_sentences(const Tables* tables, const void* vocabulary, const char* bytes,
                              const std::int64_t* offsets, std::int64_t texts, double* out, std::int64_t* out_words,
                              int threads) {
    const Vocabulary& ids = *static_cast<const Vocabulary*>(vocabulary);
    with_tree(*tables, [&](const auto& tree) {
        divide(texts, threads, [&](std::int64_t begin, std::int64_t end) {
            const auto stop = static_cast<std::uint32_t>(tables->end);
            for (std::int64_t text = begin; text < end; ++text) {
                Context context = tables->order == 1 ? Context{} : Context{1, stop};
                double sum = 0.0;
                std::int64_t words = 1;
                each_word(bytes + offsets[text], offsets[text + 1] - offsets[text], [&](std::string_view word) {
                    sum += tree.read(context, static_cast<std::uint32_t>(ids.id_of(word, bytes + offsets[texts])));
                    ++words;
                });
                out[text] = sum + tree.read(context, stop);
                out_words[text] = words;
            }
        });
    });
}

}  // extern "C"

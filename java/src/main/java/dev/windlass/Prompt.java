package dev.windlass;

import java.util.Arrays;
import java.util.List;

/** What is continued, or turned into vectors: texts, or token ids. */
public sealed interface Prompt {
    /**
     * Texts.
     *
     * @param texts one or more, none of them empty
     */
    record Texts(List<String> texts) implements Prompt {
        /**
         * Takes a copy of the list.
         *
         * @param texts see the record
         */
        public Texts {
            texts = List.copyOf(texts);
        }
    }

    /**
     * Token ids, as {@link Client#tokenize} gives them.
     *
     * @param ids a list for each prompt
     */
    record Ids(List<List<Integer>> ids) implements Prompt {
        /**
         * Takes a copy of the lists.
         *
         * @param ids see the record
         */
        public Ids {
            ids = ids.stream().map(List::copyOf).toList();
        }
    }

    /**
     * Makes a prompt of texts.
     *
     * @param texts one or more
     * @return the prompt
     */
    static Prompt of(String... texts) {
        return new Texts(List.of(texts));
    }

    /**
     * Makes a prompt of token ids.
     *
     * @param ids of one prompt
     * @return the prompt
     */
    static Prompt ofIds(int... ids) {
        return new Ids(List.of(Arrays.stream(ids).boxed().toList()));
    }

    /**
     * Returns the prompt as the API takes it.
     *
     * @return a list of texts, or of lists of numbers
     */
    default List<?> value() {
        return this instanceof Texts given ? given.texts() : ((Ids) this).ids();
    }
}

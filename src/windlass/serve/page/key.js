// The key: kept for this tab alone, sent with every request.

const PLACE = "windlass-key";

export const key = () => sessionStorage.getItem(PLACE);
export const keep = (token) => sessionStorage.setItem(PLACE, token);
export const forget = () => sessionStorage.removeItem(PLACE);

/** Whether this service asks for keys at all; index.html is served with the answer. */
export const needed = () => document.querySelector('meta[name="windlass-keys"]').content === "on";

/** The headers that say who asks; none without a key. */
export function headers() {
  return key() ? { authorization: `Bearer ${key()}` } : {};
}

// Where the layers of a picture come from, and what its heads do.

export class Source {
  /**
   * @param {string} address of the layers, but for their number; empty where there is no server
   * @param {((layer: number) => Promise<Uint8Array>) | undefined} held what a page holds itself
   */
  constructor(address, held) {
    this.address = address;
    this.held = held;
  }

  /** A layer's payload; null where it cannot be had, or not yet. @param {number} layer */
  async layer(layer) {
    if (this.held) return this.held(layer);
    const response = await this.fetched(String(layer));
    return response ? new Uint8Array(await response.arrayBuffer()) : null;
  }

  /** What each head does, [layer][head]; none where nobody can say. @returns {Promise<string[][]>} */
  async labels() {
    const response = this.address ? await this.fetched("labels") : null;
    return response ? response.json() : [];
  }

  /** @param {string} what */
  async fetched(what) {
    const response = await fetch(`${this.address}${what}`).catch(() => null);
    return response?.status === 200 ? response : null; // 204: not yet
  }
}

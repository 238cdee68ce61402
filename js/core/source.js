// Fetches the layers of a head view, and the labels of its heads.

export class Source {
  /**
   * @param {string} address URL prefix of the layers; "" without a server
   * @param {((layer: number) => Promise<Uint8Array>) | undefined} held returns layers that the page contains
   */
  constructor(address, held) {
    this.address = address;
    this.held = held;
  }

  /** The payload of a layer, or null if it is unavailable or not ready. @param {number} layer */
  async layer(layer) {
    if (this.held) return this.held(layer);
    const response = await this.fetched(String(layer));
    return response ? new Uint8Array(await response.arrayBuffer()) : null;
  }

  /** The labels of the heads, [layer][head]; empty if unavailable. @returns {Promise<string[][]>} */
  async labels() {
    const response = this.address ? await this.fetched("labels") : null;
    return response ? response.json() : [];
  }

  /** @param {string} what */
  async fetched(what) {
    const response = await fetch(`${this.address}${what}`).catch(() => null);
    return response?.status === 200 ? response : null; // 204: not ready
  }
}

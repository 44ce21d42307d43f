import trunkline from './index.js';

export const { Client, Channel, Connection, connect } = trunkline;
export default trunkline;
